//! One GET by https, for what is fetched seldom.
//!
//! Invariants: time and size of an answer are bounded; only https is spoken; no redirection is followed.
//! Failure: a sentence.
//! Must never know: what is fetched.

use rustls_pki_types::ServerName;
use std::fmt;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CONNECT: Duration = Duration::from_secs(5);
/// Addresses of a name that are tried.
const ADDRESSES: usize = 4;
const WHOLE: Duration = Duration::from_secs(15);

/// An https address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    host: String,
    port: u16,
    path: String,
}

impl Url {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("https://")?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() => (host, port.parse().ok()?),
            Some(_) => return None,
            None => (authority, 443),
        };
        let clean = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || host.contains('@') || !clean(host) || !clean(path) {
            return None;
        }
        Some(Self { host: host.to_owned(), port, path: if path.is_empty() { "/".into() } else { path.into() } })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}:{}{}", self.host, self.port, self.path)
    }
}

/// The body of a 200.
pub(crate) fn get(url: &Url, tls: Arc<rustls::ClientConfig>, max_bytes: usize) -> Result<Vec<u8>, String> {
    let text = |error: std::io::Error| error.to_string();
    let deadline = Instant::now() + WHOLE;
    let socket = connect(url)?;
    socket.set_read_timeout(Some(CONNECT)).map_err(text)?;
    socket.set_write_timeout(Some(CONNECT)).map_err(text)?;
    let name = ServerName::try_from(url.host.clone()).map_err(|error| error.to_string())?;
    let connection = rustls::ClientConnection::new(tls, name).map_err(|error| error.to_string())?;
    let mut stream = rustls::StreamOwned::new(connection, socket);
    let request = format!(
        "GET {} HTTP/1.0\r\nHost: {}\r\nAccept: application/json\r\nConnection: close\r\n\r\n",
        url.path, url.host
    );
    stream.write_all(request.as_bytes()).map_err(text)?;
    let mut answer = Vec::new();
    let mut piece = [0; 8192];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            // Many servers close without a good-bye; the length of the body tells whether all came.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error.to_string()),
        }
        if answer.len() > max_bytes {
            return Err(format!("the answer is larger than {max_bytes} bytes"));
        }
        if Instant::now() > deadline {
            return Err(format!("no whole answer within {} s", WHOLE.as_secs()));
        }
    }
    body(&answer)
}

/// The first address of the name that answers.
fn connect(url: &Url) -> Result<TcpStream, String> {
    let mut last = format!("{} has no address", url.host);
    for address in (url.host.as_str(), url.port).to_socket_addrs().map_err(|error| error.to_string())?.take(ADDRESSES) {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = format!("{address}: {error}"),
        }
    }
    Err(last)
}

fn body(answer: &[u8]) -> Result<Vec<u8>, String> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or("the answer is not HTTP")?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| "the answer is not HTTP")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/")?.split(' ').nth(1)).unwrap_or_default();
    if status != "200" {
        return Err(format!("it answered {status}"));
    }
    let body = &answer[end + 4..];
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("transfer-encoding") && !value.eq_ignore_ascii_case("identity") {
            return Err(format!("it answered in the encoding {value}, which was not asked for"));
        }
        if name.eq_ignore_ascii_case("content-length") && value.parse::<usize>().ok() != Some(body.len()) {
            return Err("the answer was cut off".to_owned());
        }
    }
    Ok(body.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_or_refused() {
        let url = Url::parse("https://id.example:8443/keys?x=1").unwrap();
        assert_eq!(url.to_string(), "https://id.example:8443/keys?x=1");
        assert_eq!(Url::parse("https://id.example").unwrap().to_string(), "https://id.example:443/");
        for bad in [
            "http://a/",
            "https://",
            "https://:1/",
            "https://a:x/",
            "https://a b/",
            "https://u@a/",
            "https://a/\r\nX: y",
        ] {
            assert_eq!(Url::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn only_a_whole_200_is_taken() {
        assert_eq!(body(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap(), b"{}");
        assert!(body(b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n{}").is_err());
        assert!(body(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}").is_err());
        assert_eq!(body(b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n").unwrap_err(), "it answered 302");
        assert!(body(b"nonsense").is_err());
    }
}
