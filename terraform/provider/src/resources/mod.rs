//! All kinds of resources.

mod cluster;
mod environment;
mod failover;
mod grant;
mod quota;
mod schema;

use crate::fragment;
use crate::resource::Resource;

/// Every kind, in the order of their names.
pub fn all() -> Vec<Box<dyn Resource>> {
    vec![
        Box::new(cluster::Cluster::new()),
        Box::new(environment::Environment::new()),
        Box::new(failover::FailoverGroup::new()),
        Box::new(grant::Grant::new()),
        Box::new(fragment::namespace()),
        Box::new(quota::Quota::new()),
        Box::new(schema::Schema::new()),
        Box::new(fragment::subscription()),
        Box::new(grant::SubscriptionGrant::new()),
        Box::new(fragment::tenant()),
        Box::new(fragment::topic()),
    ]
}
