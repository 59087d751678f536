//! Compiles the plugin protocol's description without an installed protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/tfplugin6.proto", "proto/plugin.proto"], ["proto"])?;
    tonic_prost_build::configure().build_client(true).compile_fds(descriptors)?;
    Ok(())
}
