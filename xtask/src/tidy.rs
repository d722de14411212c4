//! The rules of the workspace that neither the compiler nor clippy knows.

use crate::lock::Lock;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Which groups of crates a group may depend on. Decisions (core) know nothing of engines (model),
/// neither knows the network (edge), and none of them knows a study (lab) or the command line (cli).
const ARROWS: &[(&str, &[&str])] = &[
    ("core", &["core"]),
    ("model", &["core", "model"]),
    ("edge", &["core", "model", "edge"]),
    ("lab", &["core", "model", "edge", "lab"]),
    ("cli", &["core", "model", "edge", "lab"]),
];

/// The crate at the bottom: it depends on no other of the workspace.
const BASE: &str = "forebay-base";

/// Groups and single crates that are pure: inputs in, outputs out, so that a run can be repeated.
const PURE: &[&str] = &["core", "model", "forebay-wire"];

/// What a pure crate must not reach, however indirectly: runtimes, sockets, clocks and chance.
const IMPURE: &[&str] =
    &["tokio", "hyper", "mio", "socket2", "rand", "getrandom", "fastrand", "chrono", "time"];

/// What no crate may name: draws come from `forebay_base::Draws`, TLS is to be rustls.
const NOWHERE: &[&str] = &["rand", "fastrand", "openssl", "native-tls"];

/// The most lines of a source file, its tests not counted. Longer files are two things.
const MAX_LINES: usize = 700;

/// The first line of a file that is a table and may be as long as the table is.
const TABLE: &str = "// tidy: a table";

/// A crate of the workspace, as `cargo metadata` tells it.
#[derive(Clone, Debug, Default)]
struct Package {
    name: String,
    /// The folder under `crates/`; empty for xtask.
    group: String,
    manifest: PathBuf,
    /// Names with whether they are for tests only.
    dependencies: Vec<(String, bool)>,
}

/// Everything that is against the rules, one sentence each.
pub(crate) fn findings(root: &Path) -> Result<Vec<String>, String> {
    let root = &root.canonicalize().map_err(|e| format!("{}: {e}", root.display()))?;
    let packages = packages(root)?;
    let lock = Lock::read(&read(&root.join("Cargo.lock"))?);
    let mut found = named_tests(root)?;
    found.extend(arrows(&packages));
    found.extend(purity(&packages, &lock));
    for p in &packages {
        found.extend(manifest(&p.name, &read(&p.manifest)?));
        let folder = p.manifest.parent().unwrap_or(root);
        for file in sources(folder)? {
            let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
            found.extend(length(&name, &read(&file)?));
        }
    }
    Ok(found)
}

/// Tests that documents name as `crates/….rs::name` and that are not there.
fn named_tests(root: &Path) -> Result<Vec<String>, String> {
    let document = "docs/differences.md";
    let mut found = Vec::new();
    for reference in read(&root.join(document))?.split('`').filter(|r| r.starts_with("crates/")) {
        let Some((file, name)) = reference.split_once("::") else { continue };
        let text = read(&root.join(file)).unwrap_or_default();
        if !text.contains(&format!("fn {name}(")) {
            found.push(format!("{document} names a test that is not there: {reference}"));
        }
    }
    Ok(found)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn packages(root: &Path) -> Result<Vec<Package>, String> {
    let run = crate::cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"]).output();
    let run = run.map_err(|e| format!("cargo metadata: {e}"))?;
    if !run.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&run.stderr)));
    }
    let all: Value = serde_json::from_slice(&run.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let packages = all["packages"].as_array().ok_or("cargo metadata: no packages")?;
    Ok(packages.iter().map(|p| package(p, root)).collect())
}

fn package(p: &Value, root: &Path) -> Package {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let manifest = PathBuf::from(text(&p["manifest_path"]));
    let group = manifest.strip_prefix(root.join("crates")).ok().and_then(|path| path.iter().next());
    let dependencies = p["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    Package {
        name: text(&p["name"]),
        group: group.map(|g| g.to_string_lossy().into_owned()).unwrap_or_default(),
        dependencies: dependencies.iter().map(|d| (text(&d["name"]), d["kind"] == "dev")).collect(),
        manifest,
    }
}

/// Dependencies between crates of the workspace, those of tests included.
fn arrows(packages: &[Package]) -> Vec<String> {
    let mut found = Vec::new();
    for p in packages {
        let allowed = match ARROWS.iter().find(|(group, _)| *group == p.group) {
            Some((_, allowed)) if p.name != BASE => *allowed,
            Some(_) => &[],
            None if p.group.is_empty() => &[],
            None => {
                found.push(format!("{}: crates/{} is none of the groups of ARROWS", p.name, p.group));
                continue;
            }
        };
        let inside = p.dependencies.iter().filter_map(|(d, _)| packages.iter().find(|q| q.name == *d));
        for d in inside.filter(|d| !allowed.contains(&d.group.as_str())) {
            let place = if p.name == BASE { BASE } else { p.group.as_str() };
            found.push(format!("{} depends on {} ({}), which {place} may not", p.name, d.name, d.group));
        }
    }
    found
}

fn purity(packages: &[Package], lock: &Lock) -> Vec<String> {
    let mut found = Vec::new();
    for p in packages {
        for (d, _) in p.dependencies.iter().filter(|(d, _)| NOWHERE.contains(&d.as_str())) {
            found.push(format!("{} depends on {d}, which is allowed nowhere", p.name));
        }
        if !PURE.contains(&p.group.as_str()) && !PURE.contains(&p.name.as_str()) {
            continue;
        }
        // Test tools may draw and wait; crates of the workspace answer for themselves.
        let direct = p.dependencies.iter().filter(|(_, dev)| !dev).map(|(d, _)| d.as_str());
        let direct = direct.filter(|d| packages.iter().all(|q| q.name != *d));
        for bad in lock.reached(direct).into_iter().filter(|d| IMPURE.contains(d)) {
            found.push(format!("{} reaches {bad}; it has to stay free of time, chance and sockets", p.name));
        }
    }
    found
}

/// A crate takes its lints and all versions from the workspace.
fn manifest(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut section = "";
    let mut lints = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if section == "[lints]" {
            lints |= line == "workspace = true";
        } else if section.ends_with("dependencies]")
            && line.contains('=')
            && !line.contains("workspace = true")
        {
            found.push(format!("{name}: `{line}` does not take its version from the workspace"));
        }
    }
    if !lints {
        found.push(format!("{name}: [lints] workspace = true is missing"));
    }
    found
}

/// All Rust files below a folder, by name, build output left out.
fn sources(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut open = vec![folder.to_owned()];
    let mut out = Vec::new();
    while let Some(folder) = open.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for entry in entries {
            let path = entry.map_err(|e| format!("{}: {e}", folder.display()))?.path();
            if path.is_dir() && !path.ends_with("target") {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                out.push(path);
            }
        }
    }
    out.sort();
    Ok(out)
}

/// Whether a file is too long. Files of tests and tables are as long as they are.
fn length(name: &str, text: &str) -> Option<String> {
    let tests = name.contains("/tests/") || name.ends_with("tests.rs");
    if tests || text.starts_with(TABLE) {
        return None;
    }
    let lines = text.lines().position(|l| l == "#[cfg(test)]").unwrap_or_else(|| text.lines().count());
    (lines > MAX_LINES).then(|| format!("{name} has {lines} lines without its tests; {MAX_LINES} are enough"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        let found = findings(&crate::root()).unwrap();
        assert!(found.is_empty(), "\n{}\n", found.join("\n"));
    }

    fn package(name: &str, group: &str, dependencies: &[&str]) -> Package {
        Package {
            name: name.into(),
            group: group.into(),
            dependencies: dependencies.iter().map(|d| ((*d).to_owned(), false)).collect(),
            ..Package::default()
        }
    }

    #[test]
    fn arrows_point_down() {
        let good = [
            package(BASE, "core", &["libm"]),
            package("forebay-kernel", "core", &[BASE]),
            package("forebay-engine", "model", &["forebay-kernel", BASE]),
            package("forebay-emulate", "edge", &["forebay-engine"]),
            package("forebay", "cli", &["forebay-emulate", "forebay-kernel"]),
            package("xtask", "", &["serde_json"]),
        ];
        assert_eq!(arrows(&good), Vec::<String>::new());
        for (i, dependency) in
            [(0, "forebay-kernel"), (1, "forebay-engine"), (2, "forebay-emulate"), (3, "forebay"), (5, BASE)]
        {
            let mut bad = good.to_vec();
            bad[i].dependencies.push((dependency.into(), true));
            assert_eq!(arrows(&bad).len(), 1, "{} -> {dependency}", bad[i].name);
        }
        assert_eq!(arrows(&[package("forebay-x", "attic", &[])]).len(), 1);
    }

    #[test]
    fn pure_crates_reach_no_runtime() {
        let lock = Lock::read("name = \"h\"\n \"tokio\",\n");
        assert_eq!(purity(&[package("forebay-kernel", "core", &["h"])], &lock).len(), 1);
        assert_eq!(purity(&[package("forebay-wire", "edge", &["h"])], &lock).len(), 1);
        assert_eq!(purity(&[package("forebay-net", "edge", &["h"])], &lock).len(), 0);
        assert_eq!(purity(&[package("forebay-net", "edge", &["rand"])], &lock).len(), 1);
        let mut tested = package("forebay-kernel", "core", &["h"]);
        tested.dependencies[0].1 = true;
        assert_eq!(purity(&[tested], &lock).len(), 0);
    }

    #[test]
    fn manifests_follow_the_workspace() {
        let good = "[package]\nversion.workspace = true\n[dependencies]\na = { workspace = true }\n\n\
                    [lints]\nworkspace = true\n";
        assert_eq!(manifest("x", good), Vec::<String>::new());
        assert_eq!(manifest("x", &good.replace("{ workspace = true }", "\"1\"")).len(), 1);
        assert_eq!(manifest("x", "[package]\nname = \"x\"\n").len(), 1);
    }

    #[test]
    fn long_files_are_found() {
        let long = "//\n".repeat(MAX_LINES + 1);
        assert!(length("crates/a/b/src/c.rs", &long).is_some());
        assert!(length("crates/a/b/src/c.rs", &long[3..]).is_none());
        assert!(length("crates/a/b/tests/it/c.rs", &long).is_none());
        assert!(length("crates/a/b/src/c.rs", &format!("{TABLE}\n{long}")).is_none());
        let tested = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{long}}}\n");
        assert!(length("crates/a/b/src/c.rs", &tested).is_none());
    }
}
