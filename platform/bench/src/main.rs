//! The bench's command line.
//!
//! Role: reads options, runs cases, prints one JSON line each.
//! Failure: one line on standard error, exit code 1.
//! Must never know: how a case is run.
#![forbid(unsafe_code)]

use clap::{Args, Parser, Subcommand};
use meridian_bench::cases::{self, Case, Settings};
use meridian_bench::link::Target;
use meridian_bench::server::Server;
use meridian_bench::{BenchError, raw};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures a broker from the outside, and the machine beside it.
#[derive(Parser)]
#[command(name = "meridian-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run cases against a broker; one JSON line each.
    Load(LoadArgs),
    /// Measure synced writes and loopback round trips without a server.
    Raw(raw::RawArgs),
}

#[derive(Args)]
struct LoadArgs {
    /// The broker.
    #[arg(long, default_value = "pulsar://127.0.0.1:6650", value_name = "URL")]
    url: String,
    /// Its web address, for the number of journal syncs.
    #[arg(long, value_name = "URL")]
    web: Option<String>,
    /// Its processes, for CPU time, memory and written bytes.
    #[arg(long, value_delimiter = ',', value_name = "PID")]
    pid: Vec<u32>,
    /// A token to authenticate with; better given as MERIDIAN_TOKEN in the environment.
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Multiplies the amount of work of each case.
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = positive)]
    scale: f64,
    /// Producers of the case `unbatched`.
    #[arg(long, default_value_t = 10, value_name = "N")]
    producers: usize,
    /// Messages per second; without, as fast as receipts come (`paced`: 20,000).
    #[arg(long, value_name = "N", value_parser = positive)]
    rate: Option<f64>,
    /// Empty the page cache before `catchup` reads (needs root).
    #[arg(long)]
    drop_caches: bool,
    /// What to run, in this order.
    #[arg(required = true)]
    cases: Vec<Case>,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("expected a number above 0".into()),
    }
}

async fn load(args: LoadArgs) -> Result<(), BenchError> {
    let web = args.web.as_deref().map(Server::web_address).transpose()?;
    let token = Target::token(args.token);
    let settings = Settings {
        target: Target::parse(&args.url, token.clone())?,
        server: Server { pids: args.pid, web, token },
        tag: std::process::id().to_string(),
        scale: args.scale,
        producers: args.producers.max(1),
        messages_per_s: args.rate,
        drop_caches: args.drop_caches,
    };
    for case in args.cases {
        let report = cases::run(case, &settings).await?;
        println!("{}", serde_json::Value::Object(report));
    }
    Ok(())
}

fn run(cli: Cli) -> Result<(), BenchError> {
    match cli.command {
        Command::Raw(args) => raw::run(&args, |report| println!("{}", serde_json::Value::Object(report))),
        Command::Load(args) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
            runtime.map_err(BenchError::io("starting threads"))?.block_on(load(args))
        }
    }
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("meridian-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
