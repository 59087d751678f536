//! Configuration: one table that declares every key, and the reader of properties files and `--set` pairs.
//!
//! Role: Pulsar's key names wherever Pulsar has the setting, own names beside them, so that an operator can bring a
//! `broker.conf`. [`TABLE`] declares each key; the reference page and `meridian settings` are printed from it.
//! Invariants: C1 every [`Key`] has exactly one row and every default parses as its kind; C2 a bad value ends the start
//! with key, value and what was expected, also one that fits alone but not with others; C3 an unknown key is never silent.
//! Failure: [`SettingsError`]; what does not end the start is a [`Notice`].
//! Must never know: what a setting is used for.
#![forbid(unsafe_code)]

pub mod elsewhere;
pub mod kind;
pub mod nearest;
pub mod print;
pub mod read;
pub mod table;

pub use kind::{Kind, Range};
pub use read::{Notice, Settings, SettingsError};
pub use table::{Key, Setting, TABLE};
