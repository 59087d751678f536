//! Asks a peer's web service for the address of its region link.
//!
//! Invariants: a service by TLS is asked by TLS, checked against the authorities of the link; the answer is bounded in size and time; an address without TLS is never taken from it: who wants that
//! writes it down.
//! Failure: a sentence that says what was asked and answered.
//! Must never know: any other call of that service.

use crate::config::LinkTls;
use crate::secure;
use meridian_topology::{Endpoint, HostPort};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// Where a region says its link's address.
pub const PATH: &str = "/admin/v2/meridian/region-link";
/// Largest answer.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// What a peer says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Discovered {
    /// Its link is there.
    Link(Endpoint),
    /// It has none that can be used.
    None(String),
}

/// Asks; the caller bounds the time.
///
/// # Errors
/// It did not answer.
pub(crate) async fn ask(web: &Endpoint, tls: Option<&LinkTls>) -> Result<Discovered, String> {
    let config = match (web.tls, tls) {
        (false, _) => None,
        (true, Some(tls)) => Some(tls.client(&[b"http/1.1"])),
        (true, None) => {
            let why = "its web service is reached by TLS only, and there are no authorities to check it against: set \
                       regionLinkTrustCertsFilePath with the link's certificate, or write regionLinkUrl into its cluster entry";
            return Ok(Discovered::None(why.to_owned()));
        }
    };
    let scheme = if web.tls { "https" } else { "http" };
    let mut last = String::new();
    for address in &web.addresses {
        match get(address, config.clone()).await {
            Ok((status, body)) => return Ok(read(status, &body)),
            Err(error) => last = format!("{scheme}://{address}{PATH}: {error}"),
        }
    }
    Err(last)
}

async fn get(address: &HostPort, tls: Option<Arc<rustls::ClientConfig>>) -> Result<(u16, Vec<u8>), String> {
    let text = |error: std::io::Error| error.to_string();
    match tls {
        None => exchange(address, TcpStream::connect((address.host.as_str(), address.port)).await.map_err(text)?).await,
        Some(config) => {
            let stream = secure::connect(config, &address.host, address.port).await.map_err(text)?;
            exchange(address, stream).await
        }
    }
}

async fn exchange(
    address: &HostPort,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
) -> Result<(u16, Vec<u8>), String> {
    let text = |error: std::io::Error| error.to_string();
    let request = format!("GET {PATH} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(text)?;
    let mut answer = Vec::new();
    match stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await {
        Ok(_) => {}
        // Over TLS many servers close without a good-bye.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof && !answer.is_empty() => {}
        Err(error) => return Err(error.to_string()),
    }
    split(&answer).ok_or_else(|| "the answer is not HTTP".to_owned())
}

fn split(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let head_end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..head_end]).ok()?;
    let status = head.strip_prefix("HTTP/")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer[head_end + 4..].to_vec()))
}

fn read(status: u16, body: &[u8]) -> Discovered {
    if status == 404 {
        return Discovered::None("it knows none (an Apache Pulsar cluster?)".to_owned());
    }
    if status != 200 {
        return Discovered::None(format!("its web service answers {status}"));
    }
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    match value["url"].as_str().filter(|url| !url.is_empty()) {
        None => Discovered::None("it is switched off there (regionLinkPort is empty)".to_owned()),
        Some(url) => match Endpoint::link(url) {
            Some(endpoint) if endpoint.tls => Discovered::Link(endpoint),
            Some(_) => Discovered::None(format!(
                "it is offered without TLS; to use it nevertheless write regionLinkUrl={url} into its cluster entry"
            )),
            None => Discovered::None(format!("its address can't be read: {url}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let https = read(200, br#"{"region":"east","url":"https://east:6680"}"#);
        assert_eq!(https, Discovered::Link(Endpoint::link("https://east:6680").unwrap()));
        let none = |status, body: &str| match read(status, body.as_bytes()) {
            Discovered::None(why) => why,
            Discovered::Link(endpoint) => panic!("{endpoint:?}"),
        };
        assert!(none(404, "").contains("Apache Pulsar"));
        assert!(none(401, "").contains("401"));
        assert!(none(200, r#"{"url":null}"#).contains("switched off"));
        assert!(none(200, r#"{"url":"http://east:6680"}"#).contains("regionLinkUrl=http://east:6680"));
        assert!(none(200, r#"{"url":"east"}"#).contains("can't be read"));
        assert_eq!(split(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\n{}"), Some((200, b"{}".to_vec())));
        assert_eq!(split(b"nonsense"), None);
    }
}
