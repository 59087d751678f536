//! Calls that another broker has to answer: 307 to the same path there.
//!
//! Role: handlers only say who; the address is put together where the request is known.

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;

/// The plain and the TLS address of the web service of the broker that answers, in the response's extensions.
#[derive(Debug, Clone)]
pub struct Elsewhere(pub (Option<String>, Option<String>));

/// Puts the address of the same call at that broker into redirects.
pub async fn redirect(request: Request, next: Next) -> Response {
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let mut response = next.run(request).await;
    if let Some(Elsewhere((plain, tls))) = response.extensions_mut().remove::<Elsewhere>()
        && let Some(url) = plain.or(tls)
        && let Ok(location) = HeaderValue::from_str(&at(&url, &path))
    {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// The call at another broker; it knows that it was asked on purpose.
fn at(url: &str, path: &str) -> String {
    let joint = match path {
        path if path.contains("authoritative=") => "",
        path if path.contains('?') => "&authoritative=true",
        _ => "?authoritative=true",
    };
    format!("{}{path}{joint}", url.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::at;

    #[test]
    fn the_same_path_at_another_broker() {
        assert_eq!(at("http://b:1/", "/admin/v2/x"), "http://b:1/admin/v2/x?authoritative=true");
        assert_eq!(at("http://b:1", "/x?a=1"), "http://b:1/x?a=1&authoritative=true");
        assert_eq!(at("http://b:1", "/x?authoritative=false"), "http://b:1/x?authoritative=false");
    }
}
