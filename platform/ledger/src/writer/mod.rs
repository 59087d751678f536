//! The writer: a pure machine and the shell that carries its effects to bookies, metadata and the owner.

pub mod machine;
mod member;
pub(crate) mod shell;
pub mod update;
pub mod words;
