//! Who asks: from headers and certificates to a principal, before any handler runs (A1).

use crate::error::AdminError;
use crate::listener::PeerCertificates;
use crate::state::AdminState;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use meridian_broker::Access;
use meridian_broker::access::{LoginError, Original, Principal};
use std::future::Future;

/// Role of the client, from a proxy.
const ORIGINAL_PRINCIPAL: &str = "x-original-principal";

/// Credentials as a request shows them.
struct Shown {
    method: &'static str,
    data: Vec<u8>,
}

fn shown(headers: &HeaderMap) -> Shown {
    let text = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match text.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
            Shown { method: "token", data: token.trim().as_bytes().to_vec() }
        }
        // What does not decode is a wrong password.
        Some((scheme, pair)) if scheme.eq_ignore_ascii_case("basic") => {
            Shown { method: "basic", data: STANDARD.decode(pair.trim()).unwrap_or_default() }
        }
        _ => Shown { method: "none", data: Vec::new() },
    }
}

/// Lets a request in with its principal, or answers 401.
pub async fn authenticate(
    State(state): State<AdminState>,
    mut request: Request,
    next: Next,
) -> Result<Response, AdminError> {
    let asked = principal_of(&state, &request);
    let principal = asked.await?;
    request.extensions_mut().insert(principal);
    Ok(next.run(request).await)
}

/// Who asks: 401 for whom that is not known of. What is to be checked is taken out at once, a request can't be shared.
pub fn principal_of(
    state: &AdminState,
    request: &Request,
) -> impl Future<Output = Result<Principal, AdminError>> + Send + use<> {
    let check = check_of(state, request);
    let path = request.uri().path().to_owned();
    async move {
        let Some(check) = check else { return Ok(Principal::nobody()) };
        check.run().await?.map_err(|error| {
            tracing::debug!(%error, path, "a request was not authenticated");
            AdminError::new(StatusCode::UNAUTHORIZED, "Authentication required")
        })
    }
}

/// Everything that is needed to check who asks.
struct Check {
    access: Access,
    shown: Shown,
    certificates: Option<PeerCertificates>,
    original: Original,
    is_slow: bool,
}

/// What a request shows; `None` while authentication is off.
fn check_of(state: &AdminState, request: &Request) -> Option<Check> {
    let access = state.service.access().clone();
    let identity = access.identity.as_ref()?;
    let certificates = request.extensions().get::<PeerCertificates>().cloned();
    let mut shown = shown(request.headers());
    let has_certificate = certificates.as_ref().is_some_and(|chain| !chain.0.is_empty());
    if shown.method == "none" && has_certificate && identity.offers("tls") {
        shown.method = "tls";
    }
    let original = request.headers().get(ORIGINAL_PRINCIPAL).and_then(|value| value.to_str().ok());
    let original = Original { role: original.map(str::to_owned), ..Original::default() };
    let is_slow = identity.is_slow(shown.method);
    Some(Check { access, shown, certificates, original, is_slow })
}

impl Check {
    /// Hashes of passwords are slow on purpose: others must not wait for them.
    async fn run(self) -> Result<Result<Principal, LoginError>, AdminError> {
        let is_slow = self.is_slow;
        let check = move || {
            let chain = self.certificates.as_ref().map(|shown| shown.0.as_slice());
            self.access.authenticate(self.shown.method, &self.shown.data, chain, self.original)
        };
        if !is_slow {
            return Ok(check());
        }
        let aside = tokio::task::spawn_blocking(check).await;
        aside.map_err(|error| AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn credentials_are_taken_from_the_header() {
        let of = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
            let shown = shown(&headers);
            (shown.method, String::from_utf8(shown.data).unwrap())
        };
        assert_eq!(of("Bearer abc"), ("token", "abc".to_owned()));
        assert_eq!(of("Basic YWRtaW46cHc="), ("basic", "admin:pw".to_owned()));
        assert_eq!(of("basic !"), ("basic", String::new()));
        assert_eq!(of("Digest x"), ("none", String::new()));
        assert_eq!(shown(&HeaderMap::new()).method, "none");
    }
}
