//! Help texts, exit codes, and readers that leave.

use crate::{command, run};
use std::fmt::Write;
use std::process::Stdio;

#[test]
fn help_reads_well() {
    let mut text = String::new();
    for args in [
        &["--help"][..],
        &["serve", "--help"],
        &["emulate", "--help"],
        &["config", "--help"],
        &["config", "check", "--help"],
        &["config", "schema", "--help"],
        &["plugins", "--help"],
        &["policy", "--help"],
        &["policy", "table", "--help"],
        &["replay", "--help"],
    ] {
        let help = run(args).good();
        assert!(help.lines().all(|l| l.chars().count() <= 100), "{help}");
        write!(text, "$ forebay {}\n{help}\n", args.join(" ")).unwrap();
    }
    insta::assert_snapshot!("help", text);
}

#[test]
fn wrong_usage_exits_with_64() {
    for (args, said) in [
        (&[][..], "Usage: forebay <COMMAND>"),
        (&["confg"], "error: unrecognized subcommand 'confg'"),
        (&["config", "check"], "error: the following required arguments were not provided"),
        (&["policy", "table", "--bands", "0"], "error: invalid value '0' for '--bands <N>'"),
        (&["policy", "table", "--param", "x"], "error: --param \"x\"; expected KEY=VALUE"),
        (&["config", "check", "no-such.yaml"], "error: no-such.yaml: cannot be read: "),
        (&["replay", "--config", "-", "-"], "error: only one of --config and LOG can be stdin"),
    ] {
        let r = run(args);
        assert_eq!((r.code, r.out.as_str()), (64, ""), "{args:?}: {}", r.err);
        assert!(r.err.starts_with(said) || args.is_empty() && r.err.contains(said), "{args:?}: {}", r.err);
    }
}

#[test]
fn version_is_that_of_the_workspace() {
    assert_eq!(run(&["--version"]).good(), concat!("forebay ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn a_reader_that_left_is_no_failure() {
    for args in [&["config", "schema"][..], &["plugins", "--markdown"], &["policy", "table"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = command(args).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let o = child.wait_with_output().unwrap();
        assert_eq!(
            (o.status.code(), String::from_utf8(o.stderr).unwrap()),
            (Some(0), String::new()),
            "{args:?}"
        );
    }
}
