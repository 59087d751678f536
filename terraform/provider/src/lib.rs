//! Meridian's provider for Terraform.
//!
//! Role: speaks Terraform's plugin protocol (version 6) on one side and a region's admin API on the other. Attributes of
//! policies are made from the one table of policies; what stands together is checked by the same code as declarative
//! documents, so that a plan refuses what an apply would.
//! Invariants: T1 what was applied reads back as it was planned, or the apply is an error; T2 an attribute that is not set
//! means the policy is not set, and one that others set is shown by the next plan; T3 what is gone is made anew, never
//! an error; T4 errors name the attribute; T5 secrets are sensitive and never in texts.
//! Failure: diagnostics, each with its attribute where there is one.
//! Must never know: how a region keeps what it is told.
#![forbid(unsafe_code)]

pub mod api;
mod attribute;
mod check;
mod fragment;
pub mod plugin;
mod proto;
mod provider;
mod resource;
mod resources;
mod told;
mod value;

pub use attribute::snake;
pub use proto::tfplugin6 as protocol;
pub use provider::Meridian;
pub use value::Value;
