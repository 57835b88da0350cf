//! Reading variables.

use std::str::FromStr;

use super::EnvError;
use super::launcher::Variable;

pub(super) const INDEX: &str = "a decimal number from 0";
pub(super) const COUNT: &str = "a decimal number from 1";

/// The environment, through functions.
pub(super) struct Env<'a> {
    /// A variable's value.
    pub lookup: &'a dyn Fn(&str) -> Option<String>,
    /// What names this process's Hydra, which names its runs in no variable.
    pub hydra: &'a dyn Fn() -> Option<String>,
}

impl Env<'_> {
    /// A variable's value; an empty one counts as absent, as launchers and shells treat it.
    pub fn text(&self, variable: &str) -> Option<String> {
        (self.lookup)(variable).filter(|value| !value.is_empty())
    }

    pub fn has(&self, variable: &str) -> bool {
        self.text(variable).is_some()
    }

    /// A variable's value, parsed, if it is set.
    pub fn parse<T: FromStr>(
        &self,
        variable: &'static str,
        expected: &'static str,
        valid: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, EnvError> {
        let Some(found) = self.text(variable) else { return Ok(None) };
        match found.parse() {
            Ok(value) if valid(&value) => Ok(Some(value)),
            _ => Err(EnvError::Invalid { variable, found, expected }),
        }
    }

    pub fn index(&self, name: &'static str) -> Result<Option<Variable>, EnvError> {
        Ok(self.parse(name, INDEX, |_| true)?.map(|value| Variable { name, value }))
    }

    pub fn count(&self, name: &'static str) -> Result<Option<Variable>, EnvError> {
        Ok(self.parse(name, COUNT, |n| *n > 0)?.map(|value| Variable { name, value }))
    }

    /// The error of a variable that should be set beside those of `beside` that are.
    pub fn missing(
        &self,
        variable: &'static str,
        expected: &'static str,
        beside: &[&'static str],
    ) -> EnvError {
        let present = beside.iter().copied().filter(|name| self.has(name)).collect();
        EnvError::Missing { variable, expected, present }
    }
}

/// Refuses two variables that contradict each other.
pub(super) fn require(
    holds: bool,
    first: Variable,
    second: Variable,
    rule: &'static str,
) -> Result<(), EnvError> {
    if holds {
        return Ok(());
    }
    Err(EnvError::Conflict {
        first: first.name,
        first_value: first.value,
        second: second.name,
        second_value: second.value,
        rule,
    })
}
