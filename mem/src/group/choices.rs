//! By which table the layers above choose algorithms.
//!
//! Here it is text: read once, when a group is made, and agreed on by its hash, so that no two
//! members choose by different tables. What it says is a matter of the layer that reads it.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::OptionsError;

/// Names the file of a table.
const VARIABLE: &str = "SYMMEM_TUNE";

/// The table by which the layers above choose algorithms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Choices {
    /// The file that the variable `SYMMEM_TUNE` names when a group is made; where it is not set or
    /// empty, [`BuiltIn`](Self::BuiltIn).
    #[default]
    Environment,
    /// What the layers bring along.
    BuiltIn,
    /// A table, as `symmem tune` writes it.
    Table(Arc<str>),
}

impl Choices {
    /// The text of a table that was given, once the group is made.
    #[must_use]
    pub fn table(&self) -> Option<&str> {
        match self {
            Choices::Table(text) => Some(text),
            Choices::Environment | Choices::BuiltIn => None,
        }
    }

    /// What it stands for now.
    pub(crate) fn resolve(self) -> Result<Self, OptionsError> {
        match self {
            Choices::Environment => Self::of_file(std::env::var_os(VARIABLE).as_deref()),
            given => Ok(given),
        }
    }

    fn of_file(path: Option<&OsStr>) -> Result<Self, OptionsError> {
        let Some(path) = path.filter(|path| !path.is_empty()) else {
            return Ok(Choices::BuiltIn);
        };
        let path = PathBuf::from(path);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Choices::Table(text.into())),
            Err(e) => Err(OptionsError::Choices { path, cause: e.to_string() }),
        }
    }

    /// What members compare.
    pub(crate) fn name(&self) -> String {
        match self {
            Choices::Environment => VARIABLE.to_owned(),
            Choices::BuiltIn => "built in".to_owned(),
            Choices::Table(text) => {
                let hash = Sha256::digest(text.as_bytes());
                hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_file_is_its_text_and_another_text_has_another_name() {
        for none in [None, Some(OsStr::new(""))] {
            assert_eq!(Choices::of_file(none).unwrap(), Choices::BuiltIn);
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "format = 1\n").unwrap();
        let table = Choices::of_file(Some(file.path().as_os_str())).unwrap();
        assert_eq!(table.table(), Some("format = 1\n"));
        let other = Choices::Table("format = 2\n".into());
        assert_eq!(table.name().len(), 16);
        assert_ne!(table.name(), other.name());
        assert_ne!(table.name(), Choices::BuiltIn.name());
        let error = Choices::of_file(Some(OsStr::new("/no/such/table"))).unwrap_err();
        assert!(error.to_string().contains("SYMMEM_TUNE names /no/such/table"), "{error}");
    }
}
