//! The protocol's messages, compiled from `proto/`.

/// Terraform's provider protocol.
#[allow(missing_docs, reason = "generated; described in the .proto file")]
#[allow(clippy::all, clippy::wildcard_imports, clippy::unwrap_used, reason = "generated")]
pub mod tfplugin6 {
    tonic::include_proto!("tfplugin6");
}

/// How a plugin is asked to end.
#[allow(missing_docs, reason = "generated; described in the .proto file")]
#[allow(clippy::all, clippy::wildcard_imports, clippy::unwrap_used, reason = "generated")]
pub mod plugin {
    tonic::include_proto!("plugin");
}
