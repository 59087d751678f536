//! The `$apr1$` password hash of htpasswd files (MD5 in a thousand rounds, with its own base64 alphabet).
//!
//! Source: the format as Apache's htpasswd documents and writes it.

use md5::{Digest, Md5};

const ALPHABET: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Whether the password has this hash (`$apr1$salt$digest`).
pub(crate) fn verify(password: &[u8], hash: &str) -> bool {
    let mut parts = hash.splitn(4, '$').skip(2);
    let (Some(salt), Some(digest)) = (parts.next(), parts.next()) else { return false };
    let computed = digest_text(password, salt.as_bytes());
    // Compared in constant time: a prefix that matches must not answer later.
    computed.len() == digest.len() && computed.bytes().zip(digest.bytes()).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
}

fn digest_text(password: &[u8], salt: &[u8]) -> String {
    let salt = &salt[..salt.len().min(8)];
    let inner: [u8; 16] = Md5::new().chain_update(password).chain_update(salt).chain_update(password).finalize().into();
    let mut outer = Md5::new().chain_update(password).chain_update(b"$apr1$").chain_update(salt);
    let mut left = password.len();
    while left > 0 {
        let take = left.min(16);
        outer.update(&inner[..take]);
        left -= take;
    }
    let mut bits = password.len();
    while bits > 0 {
        outer.update(if bits & 1 == 1 { &[0][..] } else { password.get(..1).unwrap_or_default() });
        bits >>= 1;
    }
    let mut digest: [u8; 16] = outer.finalize().into();
    for round in 0..1000 {
        let mut next = Md5::new();
        next.update(if round & 1 == 1 { password } else { &digest[..] });
        if round % 3 != 0 {
            next.update(salt);
        }
        if round % 7 != 0 {
            next.update(password);
        }
        next.update(if round & 1 == 1 { &digest[..] } else { password });
        digest = next.finalize().into();
    }
    encode(&digest)
}

fn encode(digest: &[u8; 16]) -> String {
    let mut text = String::with_capacity(22);
    for (a, b, c) in [(0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5)] {
        push(&mut text, u32::from(digest[a]) << 16 | u32::from(digest[b]) << 8 | u32::from(digest[c]), 4);
    }
    push(&mut text, u32::from(digest[11]), 2);
    text
}

fn push(text: &mut String, mut value: u32, characters: usize) {
    for _ in 0..characters {
        text.push(char::from(ALPHABET[(value & 63) as usize]));
        value >>= 6;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_hashes() {
        assert!(verify(b"myPassword", "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/"));
        assert!(!verify(b"myPasswort", "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/"));
        assert!(!verify(b"", "$apr1$"));
        assert!(!verify(b"x", "nothing"));
    }
}
