//! The process that Terraform starts.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let served = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(meridian_terraform::plugin::serve()));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "terraform-provider-meridian: {error}");
            ExitCode::FAILURE
        }
    }
}
