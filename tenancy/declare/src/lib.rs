//! One document that says which regions, tenants, namespaces, topics, subscriptions, policies and grants there are, and
//! the plan that leads there from what is.
//!
//! Role: reads a document (YAML or JSON), checks it whole, compares it with what is and orders the steps; decides who may
//! apply next by revisions.
//! Invariants: D1 a plan over what a plan led to is empty; D2 only what an earlier document of the same owner named is
//! ever deleted, and only when asked; D3 what the document does not speak of stays as it is: a group (`policies`,
//! `grants`, `properties`, …) that is not there is not touched, one that is there is meant whole; D4 of two appliers that
//! began at one revision the second is refused; D5 secrets are compared, never shown or kept.
//! Failure: [`Problem`]s, each with the path in the document and the limit; all of them, up to [`MAX_PROBLEMS`].
//! Must never know: I/O, clocks, how a step is carried out.
#![forbid(unsafe_code)]

mod codec;
mod document;
mod manifest;
mod object;
mod plan;
mod read;
mod render;
mod walk;

pub use document::{Document, MAX_OBJECTS, REGION_FIELDS, canonical_schema};
pub use manifest::{LEASE_MS, Manifest, Refused, State};
pub use object::{Facet, Group, Object, ObjectId};
pub use plan::{Action, Actual, Allowed, Change, Plan, Step, compare};
pub use read::{MAX_DOCUMENT_BYTES, read};
pub use render::{render, render_one};
pub use walk::{MAX_PROBLEMS, Problem};
