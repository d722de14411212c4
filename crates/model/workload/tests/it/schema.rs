//! The published schema.

use forebay_workload::{PRESETS, Workload, schema};

#[test]
fn the_published_schema_is_the_one_of_the_reader() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/workload.schema.json");
    let published = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(published, schema(), "run `cargo xtask docs`");
}

/// Every field that the schema has is known to the reader, and the other way round: the reader names all its
/// fields when it meets one that it does not know.
#[test]
fn schema_and_reader_know_the_same_fields() {
    let schema: serde_json::Value = serde_json::from_str(&schema()).unwrap();
    let mut of_schema: Vec<&String> =
        schema["$defs"]["class"]["properties"].as_object().unwrap().keys().collect();
    of_schema.sort();
    let found =
        Workload::read("version: 1\nname: t\nmode: {kind: surge, window: 1s}\nclasses: {c: {zz: 1}}\n", "");
    let found = found.unwrap_err();
    let unknown = found.0.iter().find(|d| d.path == "classes.c.zz").unwrap();
    let mut of_reader: Vec<&str> = unknown.expected.trim_start_matches("one of ").split(", ").collect();
    of_reader.sort_unstable();
    assert_eq!(of_schema, of_reader);
}

#[test]
fn presets_read_and_have_their_names() {
    for (name, text) in PRESETS {
        let w = Workload::read(text, name).unwrap_or_else(|found| panic!("{found}"));
        assert_eq!(w.name, *name);
        assert_eq!(Workload::preset(name), Some(w));
    }
    assert_eq!(Workload::preset("cod"), None);
}

/// The examples of the documentation are what it says they are.
#[test]
fn documented_files_read() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/workloads.md");
    let text = std::fs::read_to_string(path).expect("the document is there");
    let trace = "Timestamp,Model,Request tokens,Response tokens\n0,ChatGPT,1,2\n1,GPT-4,3,4\n";
    let mut read = 0;
    for example in text.split("```yaml\n").skip(1) {
        let yaml = example.split("```").next().unwrap_or_default();
        let w = Workload::read_with(yaml, "docs/workloads.md", &mut |_| Ok(trace.into()));
        assert_eq!(w.unwrap_or_else(|found| panic!("{found}")).classes.len(), 2);
        read += 1;
    }
    assert_eq!(read, 2);
    for (name, _) in PRESETS {
        assert!(text.contains(&format!("`{name}`")), "{name} is not documented");
    }
}
