//! Contexts: a region's admin address and where its credentials are, under a name.
//!
//! Invariants: C1 the file holds paths, never a token or a key.
//! Failure: a context or file that is not there is named, with the command that makes one.
//! Must never know: what is called.

use crate::cli::Failure;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where contexts are kept, instead of below the home folder.
const FILE_VARIABLE: &str = "MERIDIAN_CONTEXTS";

/// One region.
#[derive(Args, Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Context {
    /// Admin address.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// File with a token.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Certificates to trust (PEM).
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<PathBuf>,
    /// Client certificate (PEM).
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// Its key (PEM).
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Contexts {
    current: Option<String>,
    contexts: BTreeMap<String, Context>,
}

#[derive(Subcommand)]
pub enum ContextCommand {
    /// Make or change one; the first becomes the one in use.
    Set {
        /// Its name.
        name: String,
        #[command(flatten)]
        context: Context,
    },
    /// Use one from now on.
    Use {
        /// Its name.
        name: String,
    },
    /// List them.
    List,
    /// Forget one.
    Remove {
        /// Its name.
        name: String,
    },
}

fn file() -> Result<PathBuf, Failure> {
    if let Some(file) = std::env::var_os(FILE_VARIABLE) {
        return Ok(file.into());
    }
    let home = std::env::var_os("HOME").ok_or_else(|| format!("neither {FILE_VARIABLE} nor HOME is set"))?;
    Ok(Path::new(&home).join(".config/meridian/contexts.json"))
}

fn load(file: &Path) -> Result<Contexts, Failure> {
    match std::fs::read(file) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", file.display()))?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Contexts::default()),
        Err(error) => Err(format!("{}: {error}", file.display()).into()),
    }
}

fn store(file: &Path, contexts: &Contexts) -> Result<(), Failure> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    Ok(std::fs::write(file, serde_json::to_vec_pretty(contexts)?)?)
}

/// The context of a name, or the one in use; an empty one if there is none.
///
/// # Errors
/// There is no context of that name, or the file can't be read.
pub fn chosen(name: Option<&str>) -> Result<Context, Failure> {
    let mut all = load(&file()?)?;
    let Some(name) = name.map(str::to_owned).or(all.current) else { return Ok(Context::default()) };
    let found = all.contexts.remove(&name);
    Ok(found.ok_or_else(|| {
        format!("there is no context {name}: make one with `meridian admin context set {name} --url …`")
    })?)
}

/// The token in a file.
///
/// # Errors
/// The file can't be read.
pub fn token_of(file: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("token {}: {error}", file.display()))?;
    Ok(text.trim().to_owned())
}

/// Runs one of them.
///
/// # Errors
/// The file can't be read or written, or there is no such context.
pub fn run(command: ContextCommand) -> Result<(), Failure> {
    let file = file()?;
    let mut all = load(&file)?;
    match command {
        ContextCommand::Set { name, context } => {
            all.current.get_or_insert_with(|| name.clone());
            all.contexts.insert(name, context);
        }
        ContextCommand::Use { name } if all.contexts.contains_key(&name) => all.current = Some(name),
        ContextCommand::Use { name } => return Err(format!("there is no context {name}").into()),
        ContextCommand::Remove { name } => {
            all.contexts.remove(&name);
            all.current = all.current.filter(|current| *current != name);
        }
        ContextCommand::List => {
            list(&all);
            return Ok(());
        }
    }
    store(&file, &all)
}

#[expect(clippy::print_stdout, reason = "this is what the command is for")]
fn list(all: &Contexts) {
    for (name, context) in &all.contexts {
        let mark = if all.current.as_ref() == Some(name) { "*" } else { " " };
        println!("{mark} {name}  {}", context.url.as_deref().unwrap_or("-"));
    }
}
