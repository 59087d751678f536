//! The server as a program, for tests that need a process of its own.
//!
//! Role: reads its arguments, starts the server, says where it listens, runs until it is ended.
//! Failure: a start that fails is said on the error stream and ends with status 1.
//! Must never know: requests.

use clap::Parser;
use meridian_mini_tikv::{MiniTikv, StartError, TikvOptions, TlsFiles};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// A server that speaks the protocol of TiKV and its placement driver, for tests.
#[derive(Debug, Parser)]
#[command(name = "mini-tikv", version)]
struct Arguments {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Folder that keeps the data over a restart; without it data is in memory only.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// How many regions the keys are cut into.
    #[arg(long, default_value_t = 1)]
    regions: usize,
    /// Keys before the bytes at which regions are cut.
    #[arg(long, default_value = "")]
    region_prefix: String,
    /// File that gets the address once the server listens.
    #[arg(long)]
    ready_file: Option<PathBuf>,
    /// End once standard input closes (for a parent that must not leave it behind).
    #[arg(long, hide = true)]
    end_with_stdin: bool,
    /// Who signs the clients' certificates; with --cert and --key.
    #[arg(long, requires = "cert", requires = "key")]
    ca: Option<PathBuf>,
    /// The server's certificate chain.
    #[arg(long)]
    cert: Option<PathBuf>,
    /// The server's private key.
    #[arg(long)]
    key: Option<PathBuf>,
}

fn run(arguments: Arguments) -> Result<(), StartError> {
    let tls = match (arguments.ca, arguments.cert, arguments.key) {
        (Some(ca), Some(cert), Some(key)) => Some(TlsFiles { ca, cert, key }),
        _ => None,
    };
    let server = MiniTikv::start(&TikvOptions {
        listen: arguments.listen,
        data_dir: arguments.data_dir,
        regions: arguments.regions,
        region_prefix: arguments.region_prefix.into_bytes(),
        region_cuts: Vec::new(),
        tls,
    })?;
    println!("{}", server.address());
    if let Some(ready_file) = arguments.ready_file {
        let unfinished = ready_file.with_extension("part");
        std::fs::write(&unfinished, server.address().to_string())?;
        std::fs::rename(unfinished, ready_file)?;
    }
    if arguments.end_with_stdin {
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
        return Ok(());
    }
    loop {
        std::thread::park();
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mini-tikv: {error}");
            ExitCode::FAILURE
        }
    }
}
