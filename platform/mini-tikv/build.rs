//! Compiles the descriptions of the protocol without an installed protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/tikvpb.proto", "proto/pdpb.proto"], ["proto"])?;
    tonic_prost_build::configure().build_client(false).generate_default_stubs(true).compile_fds(descriptors)?;
    Ok(())
}
