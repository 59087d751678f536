//! `meridian tokens`: keys and tokens for token authentication.

use crate::cli::Failure;
use clap::Subcommand;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use meridian_identity::{Identity, IdentityConfig, TokenConfig, source};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Subcommand)]
pub enum TokensCommand {
    /// Write a new secret key (32 random bytes).
    CreateSecretKey {
        /// The file; must not exist.
        #[arg(long)]
        output: PathBuf,
    },
    /// Make a token.
    Create {
        /// The secret key: `file://…`, a path, `data:;base64,…` or base64.
        #[arg(long)]
        secret_key: String,
        /// The role.
        #[arg(long)]
        subject: String,
        /// Seconds until it ends; without it, it does not.
        #[arg(long)]
        expiry_s: Option<u64>,
    },
    /// Show a token's claims without checking it.
    Show {
        /// The token.
        token: String,
    },
    /// Check a token.
    Validate {
        /// The secret key: `file://…`, a path, `data:;base64,…` or base64.
        #[arg(long)]
        secret_key: String,
        /// The token.
        token: String,
    },
}

/// Runs one of them.
///
/// # Errors
/// A key that can't be used, or a token that is not valid.
pub fn run(command: TokensCommand) -> Result<(), Failure> {
    match command {
        TokensCommand::CreateSecretKey { output } => create_secret_key(&output),
        TokensCommand::Create { secret_key, subject, expiry_s } => {
            let secret = source::load("--secret-key", &secret_key)?;
            let mut claims = Map::new();
            claims.insert("sub".to_owned(), Value::from(subject));
            if let Some(seconds) = expiry_s {
                let now_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
                claims.insert("exp".to_owned(), Value::from(now_s + seconds));
            }
            let key = EncodingKey::from_secret(&secret)?;
            println!("{}", jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key)?);
            Ok(())
        }
        TokensCommand::Show { token } => {
            let claims = jsonwebtoken::dangerous::insecure_decode::<Map<String, Value>>(token.trim())?.claims;
            println!("{}", serde_json::to_string_pretty(&claims)?);
            Ok(())
        }
        TokensCommand::Validate { secret_key, token } => {
            let token_config = TokenConfig { secret_key, ..TokenConfig::default() };
            let config = IdentityConfig {
                providers: vec!["token".to_owned()],
                token: token_config,
                ..IdentityConfig::default()
            };
            let principal = Identity::new(&config)?.authenticate("token", token.trim().as_bytes(), None)?;
            println!("valid, role {}", principal.role);
            Ok(())
        }
    }
}

fn create_secret_key(output: &PathBuf) -> Result<(), Failure> {
    use std::io::{Read, Write};
    use std::os::unix::fs::OpenOptionsExt;
    let mut secret = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(output)?;
    file.write_all(&secret)?;
    Ok(())
}
