//! The OpenAPI document and the router are about the same calls.

use crate::region::Region;
use std::collections::BTreeSet;

/// Paths as the router prints them.
fn paths_of(router: &axum::Router) -> BTreeSet<String> {
    let text = format!("{router:?}");
    let paths = text.split("RouteId(").filter_map(|part| part.split_once("): \"")).map(|(_, rest)| rest);
    paths
        .filter_map(|rest| rest.split_once('"'))
        .map(|(path, _)| path.to_owned())
        .filter(|path| path.starts_with('/'))
        .collect()
}

#[tokio::test]
async fn every_route_is_in_the_document_and_answered() {
    let region = Region::start().await;
    let calls = meridian_admin::openapi::calls();
    let served = paths_of(&region.router);
    assert!(served.len() > 100, "the router shows its paths: {served:?}");
    // Policies are one route each for namespaces and topics, and rows of tables.
    let single = |path: &str| path.ends_with("/{namespace}/{policy}") || path.ends_with("/{topic}/{policy}");
    // Where everything else is refused.
    let fallback = |path: &str| path == "/" || path.contains("__private__axum_fallback");
    let missing: Vec<&String> =
        served.iter().filter(|path| !single(path) && !fallback(path) && !calls.contains_key(*path)).collect();
    assert!(missing.is_empty(), "not in the document: {missing:#?}");
    for (path, methods) in &calls {
        let sample = path
            .replace("{domain}", "persistent")
            .replace("{tenant}", "public")
            .replace("{namespace}", "default")
            .replace("{cluster}", "standalone");
        let sample: String = sample
            .split('{')
            .map(|part| part.split_once('}').map_or(part.to_owned(), |(_, rest)| format!("1{rest}")))
            .collect();
        for method in methods {
            let answer = region.call(&method.to_uppercase(), &sample, "").await;
            let absent = answer.body.contains("HTTP 404 Not Found") || answer.body.contains("HTTP 405 Method");
            assert!(!absent, "{method} {path}: {answer:?}");
        }
    }
}
