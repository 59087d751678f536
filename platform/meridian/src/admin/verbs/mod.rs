//! Nouns and verbs over the admin API: `meridian admin namespaces set-retention TENANT/NAMESPACE --time 60 --size 100`.
//!
//! Role: a table of calls becomes commands; what was typed becomes one call.
//! Invariants: W1 names in paths are escaped; W2 a call is made only when everything that it needs was given.
//! Failure: clap's, or the region's status and reason.
//! Must never know: what a call does in the region.

mod namespaces;
mod output;
mod policies;
mod table;
mod topics;

pub use output::Format;

use super::api::Admin;
use crate::cli::Failure;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, Subcommand};
use serde_json::{Map, Value};
use std::fmt::Write;

/// What a body is made of.
#[derive(Clone, Copy)]
pub enum Body {
    /// Nothing.
    Nothing,
    /// One value, given after the names.
    One(Kind),
    /// An object, field by field.
    Fields(&'static [Field]),
}

/// How a value is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As it is.
    Text,
    /// A whole number.
    Number,
    /// A number.
    Decimal,
    /// `true` or `false`.
    Switch,
    /// Texts, separated by commas.
    List,
    /// JSON.
    Json,
}

/// A field of a body.
#[derive(Clone, Copy)]
pub struct Field {
    /// The option.
    pub option: &'static str,
    /// The field, `a.b` = `b` of the object `a`.
    pub name: &'static str,
    /// How it is read.
    pub kind: Kind,
}

/// One call.
#[derive(Clone, Copy)]
pub struct Verb {
    /// Name.
    pub name: &'static str,
    /// What it does.
    pub help: &'static str,
    /// HTTP method.
    pub method: &'static str,
    /// Below `/admin/v2`; `{namespace}` and `{topic}` stand for whole names.
    pub path: &'static str,
    /// Body.
    pub body: Body,
    /// Options that go into the query under the same name; `true` = a flag.
    pub query: &'static [(&'static str, bool)],
}

/// Verbs of one noun.
pub struct Noun {
    /// Name.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// Its calls.
    pub verbs: Vec<Verb>,
}

/// A call as it was typed.
pub struct Typed {
    verb: Verb,
    path: String,
    body: Value,
}

impl Typed {
    /// Makes the call and prints what is answered.
    ///
    /// # Errors
    /// The region's status and reason.
    pub async fn run(&self, admin: &Admin, format: Format) -> Result<(), Failure> {
        let answer = admin.ask(self.verb.method, &self.path, &self.body).await?;
        output::print(&answer, format)
    }
}

/// Names in a path, in order.
fn placeholders(path: &'static str) -> impl Iterator<Item = &'static str> {
    path.split('{').skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name))
}

fn command(verb: &Verb) -> Command {
    let mut command = Command::new(verb.name).about(verb.help);
    for name in placeholders(verb.path) {
        let shown = match name {
            "namespace" => "TENANT/NAMESPACE",
            "topic" | "schema-topic" => "TENANT/NAMESPACE/TOPIC",
            other => other,
        };
        command = command.arg(Arg::new(name).value_name(shown).required(true));
    }
    match verb.body {
        Body::Nothing => {}
        Body::One(_) => {
            command = command.arg(Arg::new("value").required(true).allow_hyphen_values(true));
        }
        Body::Fields(fields) => {
            for field in fields {
                let option = Arg::new(field.option).long(field.option).allow_hyphen_values(true);
                command = command.arg(option.value_name(value_name(field.kind)));
            }
        }
    }
    for (name, flag) in verb.query {
        let option = Arg::new(*name).long(*name);
        command = command.arg(if *flag { option.action(ArgAction::SetTrue) } else { option });
    }
    command
}

fn value_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "TEXT",
        Kind::Number | Kind::Decimal => "NUMBER",
        Kind::Switch => "true|false",
        Kind::List => "A,B,…",
        Kind::Json => "JSON",
    }
}

fn refuse(text: String) -> clap::Error {
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, text + "\n")
}

fn read(name: &str, kind: Kind, text: &str) -> Result<Value, clap::Error> {
    let bad = |expected: &str| refuse(format!("{name}: '{text}': expected {expected}"));
    Ok(match kind {
        Kind::Text => Value::from(text),
        Kind::Number => Value::from(text.parse::<i64>().map_err(|_| bad("a whole number"))?),
        Kind::Decimal => Value::from(text.parse::<f64>().map_err(|_| bad("a number"))?),
        Kind::Switch => Value::from(text.parse::<bool>().map_err(|_| bad("true or false"))?),
        Kind::List => text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect(),
        Kind::Json => serde_json::from_str(text).map_err(|error| bad(&format!("JSON ({error})")))?,
    })
}

/// `%XX` for everything but letters, digits and `-._~` (W1).
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn part(name: &str, text: &str) -> Result<String, clap::Error> {
    match name {
        "namespace" => match text.split_once('/') {
            Some((tenant, namespace)) if !namespace.contains('/') => {
                Ok(format!("{}/{}", escaped(tenant), escaped(namespace)))
            }
            _ => Err(refuse(format!("'{text}': expected TENANT/NAMESPACE"))),
        },
        "topic" => topic(text, "/"),
        "schema-topic" => {
            topic(text, "/").map(|path| path.replacen("non-persistent/", "", 1).replacen("persistent/", "", 1))
        }
        _ => Ok(escaped(text)),
    }
}

/// A topic as a path; short names are those of `public/default`.
fn topic(text: &str, between: &str) -> Result<String, clap::Error> {
    let (domain, rest) = text.split_once("://").unwrap_or(("persistent", text));
    let mut parts = rest.splitn(3, '/');
    let parts = match (parts.next(), parts.next(), parts.next()) {
        (Some(tenant), Some(namespace), Some(local)) => [tenant, namespace, local],
        (Some(local), None, None) if !local.is_empty() => ["public", "default", local],
        _ => return Err(refuse(format!("'{text}': expected TENANT/NAMESPACE/TOPIC"))),
    };
    Ok([domain, &escaped(parts[0]), &escaped(parts[1]), &escaped(parts[2])].join(between))
}

fn typed(verb: Verb, matches: &ArgMatches) -> Result<Typed, clap::Error> {
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    let base = if verb.path.starts_with('/') { "" } else { "/admin/v2/" };
    let mut path = format!("{base}{}", verb.path);
    for name in placeholders(verb.path) {
        path = path.replacen(&format!("{{{name}}}"), &part(name, text(name).unwrap_or_default())?, 1);
    }
    let mut join = '?';
    for (name, flag) in verb.query {
        let value = if *flag { matches.get_flag(name).then(|| "true".to_owned()) } else { text(name).map(escaped) };
        if let Some(value) = value {
            let _ = write!(path, "{join}{name}={value}");
            join = '&';
        }
    }
    let body = match verb.body {
        Body::Nothing => Value::Null,
        Body::One(kind) => read(verb.name, kind, text("value").unwrap_or_default())?,
        Body::Fields(fields) => {
            let mut object = Map::new();
            for field in fields {
                let Some(given) = text(field.option) else { continue };
                object.insert(field.name.to_owned(), read(field.option, field.kind, given)?);
            }
            Value::Object(object)
        }
    };
    Ok(Typed { verb, path, body })
}

impl FromArgMatches for Typed {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let unknown = || refuse("expected a noun and a verb".to_owned());
        let (noun, below) = matches.subcommand().ok_or_else(unknown)?;
        let (verb, given) = below.subcommand().ok_or_else(unknown)?;
        let nouns = table::nouns();
        let noun = nouns.iter().find(|known| known.name == noun).ok_or_else(unknown)?;
        let verb = noun.verbs.iter().find(|known| known.name == verb).ok_or_else(unknown)?;
        typed(*verb, given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for Typed {
    fn augment_subcommands(command: Command) -> Command {
        let one = |noun: Noun| {
            let verbs = noun.verbs.iter().map(self::command);
            Command::new(noun.name)
                .about(noun.help)
                .subcommand_required(true)
                .arg_required_else_help(true)
                .subcommands(verbs)
        };
        command.subcommands(table::nouns().into_iter().map(one))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        table::nouns().iter().any(|noun| noun.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(words: &[&str]) -> Result<(String, String, Value), clap::Error> {
        let command = Typed::augment_subcommands(Command::new("admin").subcommand_required(true));
        let matches = command.try_get_matches_from(std::iter::once(&"admin").chain(words))?;
        Typed::from_arg_matches(&matches).map(|typed| (typed.verb.method.to_owned(), typed.path, typed.body))
    }

    #[test]
    fn commands_become_calls() {
        let call = |words: &str| parsed(&words.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!(call("tenants list"), ("GET".into(), "/admin/v2/tenants".into(), Value::Null));
        let (method, path, body) = call("namespaces set-retention a/b --time 60 --size -1");
        assert_eq!((method.as_str(), path.as_str()), ("POST", "/admin/v2/namespaces/a/b/retention"));
        assert_eq!(body, json!({ "retentionTimeInMinutes": 60, "retentionSizeInMB": -1 }));
        let (_, path, body) = call("topics create-partitioned-topic a/b/c/d 4");
        assert_eq!((path.as_str(), body), ("/admin/v2/persistent/a/b/c%2Fd/partitions", json!(4)));
        let (_, path, _) = call("topics delete non-persistent://a/b/c --force");
        assert_eq!(path, "/admin/v2/non-persistent/a/b/c?force=true");
        assert!(parsed(&["namespaces", "get-retention", "a"]).is_err());
        assert!(parsed(&["namespaces", "set-message-ttl", "a/b", "soon"]).is_err());
    }

    #[test]
    fn names_are_used_once_and_commands_are_well_formed() {
        Typed::augment_subcommands(Command::new("admin")).debug_assert();
        for noun in table::nouns() {
            let mut names: Vec<_> = noun.verbs.iter().map(|verb| verb.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), noun.verbs.len(), "{}", noun.name);
        }
    }
}
