//! Between which clusters a namespace or topic may be replicated.
//!
//! Where data goes to is a matter of trust: a cluster that is unknown, or that the tenant may not use, is forbidden and
//! not only wrong.

use crate::error::AdminError;
use crate::state::AdminState;
use meridian_types::NamespaceName;
use std::collections::BTreeSet;

/// Whether something in a namespace may be replicated between these clusters.
pub fn check_clusters(
    state: &AdminState,
    namespace: &NamespaceName,
    names: &BTreeSet<String>,
) -> Result<(), AdminError> {
    if names.is_empty() {
        return Err(AdminError::invalid("ClusterIds should not be null or empty"));
    }
    if names.contains("global") {
        return Err(AdminError::invalid("Cannot specify global in the list of replication clusters"));
    }
    check_known(state, names)?;
    check_trusted(state, namespace.tenant(), names)?;
    let policies = state.registry().namespace(namespace).unwrap_or_default();
    let allowed = &policies.allowed_clusters;
    if let Some(name) = names.iter().find(|name| !allowed.is_empty() && !allowed.contains(*name)) {
        let text = format!("Cluster [{name}] is not in the list of allowed clusters list for namespace [{namespace}]");
        return Err(AdminError::bad_request(text));
    }
    check_no_peers(state, names)
}

/// Whether the clusters exist.
fn check_known(state: &AdminState, names: &BTreeSet<String>) -> Result<(), AdminError> {
    match names.iter().find(|name| state.registry().cluster(name).is_none()) {
        Some(name) => Err(AdminError::forbidden(format!("Invalid cluster id: {name}"))),
        None => Ok(()),
    }
}

/// Whether the clusters are the tenant's.
pub fn check_trusted(state: &AdminState, tenant: &str, names: &BTreeSet<String>) -> Result<(), AdminError> {
    let Some(info) = state.registry().tenant(tenant) else {
        return Err(AdminError::not_found("Tenant does not exist"));
    };
    match names.iter().find(|name| !info.allowed_clusters.contains(*name)) {
        Some(name) => Err(AdminError::forbidden(format!(
            "Cluster [{name}] is not in the list of allowed clusters list for tenant [{tenant}]"
        ))),
        None => Ok(()),
    }
}

/// Clusters that answer for each other hold the same data already.
pub fn check_no_peers(state: &AdminState, names: &BTreeSet<String>) -> Result<(), AdminError> {
    for name in names {
        let cluster = state.registry().cluster(name);
        let peers = cluster.as_ref().and_then(|cluster| cluster.peer_cluster_names.as_ref());
        if let Some(peer) = peers.into_iter().flatten().find(|peer| names.contains(*peer)) {
            return Err(AdminError::conflict(format!("{name} and {peer} are peer clusters of each other")));
        }
    }
    Ok(())
}

/// Whether a namespace's topics may be limited to these clusters.
pub fn check_allowed(
    state: &AdminState,
    namespace: &NamespaceName,
    names: &BTreeSet<String>,
) -> Result<(), AdminError> {
    check_trusted(state, namespace.tenant(), names)?;
    check_known(state, names)?;
    let policies = state.registry().namespace(namespace).unwrap_or_default();
    match policies.replication_clusters.iter().find(|name| !names.is_empty() && !names.contains(*name)) {
        Some(name) => Err(AdminError::bad_request(format!(
            "Allowed clusters do not contain the replication cluster {name}. Please remove the replication cluster if \
             the cluster is not allowed for this namespace"
        ))),
        None => Ok(()),
    }
}
