//! The manifests of a slice: the tree's own, without what is left behind.

use toml_edit::{Array, DocumentMut, Item, TableLike, Value, value};

use super::slice::{Layer, SUITE};

/// The workspace's manifest.
pub fn workspace(text: &str, layer: Layer) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|e| format!("{e}"))?;
    // The facade is a package of the root, and stays behind.
    document.retain(|key, _| matches!(key, "workspace" | "profile"));
    let workspace = table(document.as_item_mut(), "workspace")?;
    workspace.insert("members", value(Array::from_iter(layer.folders())));
    workspace.remove("default-members");
    workspace.remove("exclude");
    let here = |folder: &str| layer.folders().contains(&folder);
    keep(table_in(workspace, "dependencies")?, |_, item| {
        item.get("path").and_then(Item::as_str).is_none_or(here)
    });
    // Features of the suite that are gone, and that its sources still ask about.
    let lint = table_in(table_in(table_in(workspace, "lints")?, "rust")?, "unexpected_cfgs")?;
    let known = lint.get_mut("check-cfg").and_then(Item::as_array_mut).ok_or("no check-cfg")?;
    known.extend(layer.above().map(|name| format!("cfg(feature, values(\"{name}\"))")));
    for (_, profile) in table(document.as_item_mut(), "profile")?.iter_mut() {
        if let Some(packages) = profile.get_mut("package").and_then(Item::as_table_like_mut) {
            keep(packages, |name, _| layer.above().all(|above| name != format!("symmem-{above}")));
        }
    }
    Ok(document.to_string())
}

/// The suite's manifest.
pub fn suite(text: &str, layer: Layer) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|e| format!("{e}"))?;
    let above: Vec<&str> = layer.above().collect();
    let features = table(document.as_item_mut(), "features")?;
    // Those of the layers above, and what needs one of them.
    let is_gone = |name: &str| above.contains(&name);
    keep(features, |name, item| {
        let mut needs = item.as_array().into_iter().flatten().filter_map(Value::as_str);
        name == "default" || !(is_gone(name) || needs.any(is_gone))
    });
    features.insert("default", value(Array::from_iter([layer.name()])));
    // Features that switch something on in every layer.
    for (_, feature) in features.iter_mut() {
        if let Some(items) = feature.as_array_mut() {
            let of_above =
                |item: &str| above.iter().any(|a| item.starts_with(&format!("symmem-{a}?")));
            items.retain(|item| item.as_str().is_none_or(|item| !of_above(item)));
        }
    }
    let used: Vec<String> = features
        .iter()
        .filter_map(|(_, feature)| feature.as_array())
        .flatten()
        .filter_map(Value::as_str)
        .filter_map(|item| Some(item.strip_prefix("dep:")?.to_owned()))
        .collect();
    keep(table(document.as_item_mut(), "dependencies")?, |name, item| {
        let optional = item.get("optional").and_then(Item::as_bool) == Some(true);
        !optional || used.iter().any(|used| used == name)
    });
    for kind in ["test", "example", "bench"] {
        if let Some(targets) = document.get_mut(kind).and_then(Item::as_array_of_tables_mut) {
            targets.retain(|target| {
                let needs = target.get("required-features").and_then(Item::as_array);
                let mut needs = needs.into_iter().flatten().filter_map(Value::as_str);
                needs.all(|feature| !above.contains(&feature))
            });
        }
    }
    Ok(document.to_string())
}

fn table<'a>(item: &'a mut Item, name: &str) -> Result<&'a mut dyn TableLike, String> {
    let found = item.get_mut(name).and_then(Item::as_table_like_mut);
    found.ok_or_else(|| format!("no table {name:?} in the manifest of {SUITE} or of the workspace"))
}

fn table_in<'a>(table: &'a mut dyn TableLike, name: &str) -> Result<&'a mut dyn TableLike, String> {
    let found = table.get_mut(name).and_then(Item::as_table_like_mut);
    found.ok_or_else(|| format!("no table {name:?}"))
}

fn keep(table: &mut dyn TableLike, wanted: impl Fn(&str, &Item) -> bool) {
    let gone: Vec<String> = table
        .iter()
        .filter(|(name, item)| !wanted(name, item))
        .map(|(name, _)| name.to_owned())
        .collect();
    for name in gone {
        table.remove(&name);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const ROOT: &str = r#"
        [workspace]
        members = ["sys", "hal", "mem", "sync", "collectives", ".", "tests"]
        default-members = ["."]
        exclude = ["tools"]
        [workspace.package]
        version = "0.1.0"
        [workspace.dependencies]
        symmem-hal = { version = "=0.1.0", path = "hal" }
        symmem-collectives = { version = "=0.1.0", path = "collectives" }
        symmem = { version = "=0.1.0", path = "." }
        libc = "0.2" # the C library
        serde = { version = "1", features = ["derive"] }
        [workspace.lints.rust]
        unexpected_cfgs = { level = "deny", check-cfg = ["cfg(loom)"] }
        [profile.test.package.symmem-collectives]
        opt-level = 3
        [profile.test.package.symmem-hal]
        opt-level = 2
        [package]
        name = "symmem"
        [dependencies]
        libc.workspace = true
    "#;

    #[test]
    fn a_workspace_of_what_was_taken() {
        let text = workspace(ROOT, Layer::Mem).unwrap();
        let found: DocumentMut = text.parse().unwrap();
        let root = &found["workspace"];
        let members: Vec<_> = root["members"].as_array().unwrap().iter().collect();
        let members: Vec<_> = members.into_iter().filter_map(Value::as_str).collect();
        assert_eq!(members, ["sys", "hal", "mem", "tests"]);
        let names = |item: &Item| {
            let table = item.as_table_like().unwrap();
            table.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&root["dependencies"]), ["symmem-hal", "libc", "serde"]);
        assert_eq!(names(found.as_item()), ["workspace", "profile"]);
        assert_eq!(names(&found["profile"]["test"]["package"]), ["symmem-hal"]);
        let cfgs = root["lints"]["rust"]["unexpected_cfgs"]["check-cfg"].to_string();
        assert!(cfgs.contains("loom") && cfgs.contains("collectives"), "{cfgs}");
        assert!(root.get("default-members").is_none() && root.get("exclude").is_none());
        assert_eq!(root["package"]["version"].as_str(), Some("0.1.0"));
    }

    #[test]
    fn a_suite_without_the_upper_layers_features_and_dependencies() {
        let text = r#"
            [features]
            default = ["collectives"]
            mem = ["hal", "dep:symmem-mem"]
            cuda = ["symmem-hal/cuda", "symmem-mem?/cuda", "symmem-collectives?/cuda"]
            collectives = ["mem", "dep:half", "dep:symmem-collectives"]
            stalls = ["mem", "symmem-mem?/stalls", "symmem-sync?/stalls"]
            [dependencies]
            clap.workspace = true
            half = { workspace = true, optional = true }
            symmem-collectives = { workspace = true, optional = true }
            symmem-mem = { workspace = true, optional = true }
            [[example]]
            name = "kept"
            required-features = ["mem"]
            [[example]]
            name = "gone"
            required-features = ["collectives"]
        "#;
        let text = suite(text, Layer::Mem).unwrap();
        for gone in ["half", "symmem-collectives", "gone", "symmem-sync", "\"collectives\""] {
            assert!(!text.contains(gone), "{gone} in {text}");
        }
        for kept in [
            "clap",
            "symmem-hal/cuda",
            "symmem-mem?/cuda",
            "symmem-mem?/stalls",
            "kept",
            "default = [\"mem\"]",
        ] {
            assert!(text.contains(kept), "{kept} in {text}");
        }
    }
}
