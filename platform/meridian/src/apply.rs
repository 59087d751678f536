//! `meridian apply`: a declarative document, planned and brought into force.
//!
//! Role: reads the file, checks it here before any region is asked, sends it, waits until it is in force, and says what
//! was or would be done.
//! Failure: every problem with its path in the document, one a line; exit code 1.
//! Must never know: how a step is carried out.

use crate::admin::api::Admin;
use crate::admin::{Connection, say};
use crate::cli::Failure;
use clap::Args;
use meridian_declare::{Document, Problem, read};
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an apply may go on after the region said that it takes longer.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(300);
/// Pause between two looks whether it has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Longest value that is shown.
const SHOWN_CHARS: usize = 100;

#[derive(Args)]
pub struct ApplyArgs {
    /// The document, YAML or JSON; `-` reads it from standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: PathBuf,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Delete what the document's owner named before and does not name any more.
    #[arg(long)]
    prune: bool,
    /// Delete also topics and subscriptions that are in use, and namespaces with topics in them.
    #[arg(long, requires = "prune")]
    force: bool,
    /// Switch namespaces over to the region that the document names as active.
    #[arg(long)]
    switch: bool,
    /// For super users: apply for an owner that administrators of a tenant made, which is the super users' from then on.
    #[arg(long)]
    take_over: bool,
    /// Only if this revision of the owner's document is the one in force; 0 = none yet.
    #[arg(long, value_name = "N")]
    revision: Option<u64>,
    /// Print the region's answer as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs it.
///
/// # Errors
/// What is wrong with the document, or what the region answered.
pub fn run(args: ApplyArgs) -> Result<(), Failure> {
    let bytes = load(&args.file)?;
    let document = read(&bytes).map_err(|problem| vec![problem]).and_then(|value| Document::check(&value));
    let document = document.map_err(|problems| told(&args.file, &problems))?;
    let admin = args.connection.admin()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(apply(&admin, &args, &document, bytes))
}

fn load(file: &Path) -> Result<Vec<u8>, Failure> {
    if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    std::fs::read(file).map_err(|error| format!("-f {}: {error}", file.display()).into())
}

fn told(file: &Path, problems: &[Problem]) -> Failure {
    let lines: Vec<_> = problems.iter().map(|problem| format!("\n  {problem}")).collect();
    format!("{}: nothing was done:{}", file.display(), lines.concat()).into()
}

async fn apply(admin: &Admin, args: &ApplyArgs, document: &Document, bytes: Vec<u8>) -> Result<(), Failure> {
    let mut path = format!(
        "/admin/v2/meridian/apply?dryRun={}&prune={}&force={}&switch={}&takeOver={}",
        args.dry_run, args.prune, args.force, args.switch, args.take_over
    );
    if let Some(revision) = args.revision {
        path += &format!("&revision={revision}");
    }
    let mut answer = admin.put_bytes(&path, bytes).await?;
    if answer["state"] == "applying" {
        answer = ended(admin, document).await?;
    }
    if args.json {
        say(&serde_json::to_string_pretty(&answer)?);
        return Ok(());
    }
    for change in answer["changes"].as_array().into_iter().flatten() {
        show(change);
    }
    for left in answer["left"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        say(&format!("  {left} is not in the document any more; --prune deletes it"));
    }
    for step in answer["elsewhere"].as_array().into_iter().flatten() {
        let (object, field) = (step["object"].as_str().unwrap_or_default(), &step["fields"][0]);
        say(&format!(
            "  {object} is active in {}, not in {}; --switch switches it",
            text(&field["from"]),
            text(&field["to"])
        ));
    }
    for (region, state) in answer["regions"].as_object().into_iter().flatten().filter(|(_, state)| *state != "in force")
    {
        say(&format!("  region {region}: {}; what it misses reaches it by itself", text(state)));
    }
    let count = answer["changes"].as_array().map_or(0, Vec::len);
    let revision = answer["revision"].as_u64().filter(|revision| *revision > 0);
    let revision = revision.map(|revision| format!(", revision {revision}")).unwrap_or_default();
    say(&match (count, args.dry_run) {
        (0, _) => format!("nothing to do{revision}"),
        (count, true) => format!("{count} objects would change{revision}"),
        (count, false) => format!("{count} objects changed and in force{revision}"),
    });
    Ok(())
}

/// The answer of an apply that took longer than the region lets a caller wait.
async fn ended(admin: &Admin, document: &Document) -> Result<Value, Failure> {
    let owner = document.owner.as_deref().ok_or("the region is still applying a document without an owner")?;
    let waiting = async {
        loop {
            let found = admin.get(&format!("/admin/v2/meridian/applied/{owner}")).await?;
            match found["state"].as_str() {
                Some("applied") => return Ok(found),
                Some("applying") => tokio::time::sleep(LOOK_AGAIN).await,
                _ => return Err(format!("the apply of {owner} failed; apply again to see what is left").into()),
            }
        }
    };
    match tokio::time::timeout(IN_FORCE_WITHIN, waiting).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("the apply of {owner} has not ended in {IN_FORCE_WITHIN:?}").into()),
    }
}

fn show(change: &Value) {
    let sign = match change["action"].as_str() {
        Some("create") => '+',
        Some("delete") => '-',
        _ => '~',
    };
    say(&format!("{sign} {}", change["object"].as_str().unwrap_or_default()));
    for field in change["fields"].as_array().into_iter().flatten() {
        let name = field["field"].as_str().unwrap_or_default();
        let line = match (&field["from"], &field["to"]) {
            (Value::Null, to) => text(to),
            (from, to) => format!("{} -> {}", text(from), text(to)),
        };
        say(&format!("    {name}: {line}"));
    }
}

fn text(value: &Value) -> String {
    let text = match value {
        Value::Null => "(unset)".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
