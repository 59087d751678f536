//! What is told to whoever runs Terraform: errors and warnings, each with its attribute.

use crate::proto::tfplugin6::attribute_path::{Step, step::Selector};
use crate::proto::tfplugin6::diagnostic::Severity;
use crate::proto::tfplugin6::{AttributePath, Diagnostic};

/// A path of attributes, from the outside.
pub fn path(names: &[String]) -> Option<AttributePath> {
    if names.is_empty() {
        return None;
    }
    let step = |name: &String| Step { selector: Some(Selector::AttributeName(name.clone())) };
    Some(AttributePath { steps: names.iter().map(step).collect() })
}

/// Something to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Attributes down to the place; empty = the resource as a whole.
    pub at: Vec<String>,
    /// In a few words.
    pub summary: String,
    /// In full.
    pub detail: String,
    /// It is no error.
    pub warning: bool,
}

impl Told {
    /// An error of the resource as a whole.
    pub fn error(summary: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { at: Vec::new(), summary: summary.into(), detail: detail.into(), warning: false }
    }

    /// At an attribute.
    #[must_use]
    pub fn at(mut self, names: &[&str]) -> Self {
        self.at = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// It is no error.
    #[must_use]
    pub fn into_warning(mut self) -> Self {
        self.warning = true;
        self
    }

    /// As the protocol says it.
    pub fn diagnostic(&self) -> Diagnostic {
        let severity = if self.warning { Severity::Warning } else { Severity::Error };
        Diagnostic {
            severity: severity.into(),
            summary: self.summary.clone(),
            detail: self.detail.clone(),
            attribute: path(&self.at),
        }
    }
}
