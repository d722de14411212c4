//! `Cargo.lock`: what each package pulls in. Read as text, so that no registry has to be at hand.

use std::collections::{BTreeMap, BTreeSet};

/// Package names with the names that they depend on. Versions are not told apart: a rule about a crate
/// holds for all of its versions.
#[derive(Debug, Default)]
pub(crate) struct Lock(BTreeMap<String, BTreeSet<String>>);

impl Lock {
    /// Reads the text of a `Cargo.lock`.
    pub(crate) fn read(text: &str) -> Lock {
        let mut lock = Lock::default();
        let mut package = String::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("name = ") {
                name.trim_matches('"').clone_into(&mut package);
                lock.0.entry(package.clone()).or_default();
            } else if let Some(dependency) = line.strip_prefix(" \"")
                && let Some(name) = dependency.split(['"', ' ']).next()
            {
                lock.0.entry(package.clone()).or_default().insert(name.to_owned());
            }
        }
        lock
    }

    /// Everything that is reached from these packages, themselves included.
    pub(crate) fn reached<'a>(&'a self, from: impl IntoIterator<Item = &'a str>) -> BTreeSet<&'a str> {
        let mut open: Vec<&str> = from.into_iter().collect();
        let mut seen = BTreeSet::new();
        while let Some(name) = open.pop() {
            if seen.insert(name) {
                open.extend(self.0.get(name).into_iter().flatten().map(String::as_str));
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_reach_what_they_depend_on() {
        let lock = Lock::read(
            "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\ndependencies = [\n \"b 2.0.0\",\n]\n\n\
             [[package]]\nname = \"b\"\nversion = \"2.0.0\"\ndependencies = [\n \"c\",\n]\n\n\
             [[package]]\nname = \"c\"\nversion = \"0.1.0\"\n",
        );
        assert_eq!(lock.reached(["a"]).into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(lock.reached(["c"]).len(), 1);
    }
}
