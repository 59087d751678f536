//! Compiles `proto/pulsar_api.proto` to Rust with a compiler written in Rust, so that no `protoc` is needed.

use std::error::Error;

/// Messages that carry credentials; their `Debug` is written by hand (`src/redact.rs`).
const SECRET: [&str; 4] = [
    ".meridian.wire.AuthData",
    ".meridian.wire.CommandConnect",
    ".meridian.wire.CommandLookupTopic",
    ".meridian.wire.CommandPartitionedTopicMetadata",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/pulsar_api.proto");
    let descriptors = protox::compile(["proto/pulsar_api.proto"], ["proto"])?;
    prost_build::Config::new().bytes(["."]).skip_debug(SECRET).compile_fds(descriptors)?;
    Ok(())
}
