//! `meridian tokens`: keys and tokens for token authentication.

use crate::cli::Failure;
use clap::{Args, Subcommand, ValueEnum};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use meridian_identity::token::as_pem;
use meridian_identity::{Identity, IdentityConfig, TokenConfig, source};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, PublicKeyData};
use serde_json::{Map, Value};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Subcommand)]
pub enum TokensCommand {
    /// Write a new secret key (32 random bytes).
    CreateSecretKey {
        /// The file; must not exist.
        #[arg(long)]
        output: PathBuf,
    },
    /// Write a new pair of keys, DER as Pulsar's tools do.
    CreateKeyPair {
        /// File of the private key (PKCS #8); must not exist.
        #[arg(long)]
        output_private_key: PathBuf,
        /// File of the public key (SubjectPublicKeyInfo); must not exist.
        #[arg(long)]
        output_public_key: PathBuf,
        /// What they sign.
        #[arg(long, value_enum, default_value_t = SignAs::Rs256)]
        algorithm: SignAs,
    },
    /// Make a token.
    Create(CreateArgs),
    /// Show a token's header and claims without checking it.
    Show {
        /// The token.
        token: String,
    },
    /// Check a token.
    Validate(ValidateArgs),
}

/// What signs tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SignAs {
    /// RSA with SHA-256.
    Rs256,
    /// The P-256 curve.
    Es256,
}

impl SignAs {
    fn algorithm(self) -> Algorithm {
        match self {
            SignAs::Rs256 => Algorithm::RS256,
            SignAs::Es256 => Algorithm::ES256,
        }
    }
}

#[derive(Args)]
pub struct CreateArgs {
    /// The secret key: `file://…`, a path, `data:;base64,…` or base64.
    #[arg(long, required_unless_present = "private_key", conflicts_with = "private_key")]
    secret_key: Option<String>,
    /// The private key, in the same forms, PKCS #8 (DER or PEM).
    #[arg(long)]
    private_key: Option<String>,
    /// What the private key signs.
    #[arg(long, value_enum, default_value_t = SignAs::Rs256)]
    algorithm: SignAs,
    /// The role.
    #[arg(long)]
    subject: String,
    /// Seconds until it ends; without it, it does not.
    #[arg(long)]
    expiry_s: Option<u64>,
    /// Seconds until it begins.
    #[arg(long)]
    not_before_s: Option<u64>,
    /// Who it is for (claim `aud`). May be given many times.
    #[arg(long)]
    audience: Vec<String>,
    /// Id of the key in the header (`kid`), to be found in a set of keys.
    #[arg(long)]
    key_id: Option<String>,
}

#[derive(Args)]
pub struct ValidateArgs {
    /// The secret key: `file://…`, a path, `data:;base64,…` or base64.
    #[arg(long, default_value = "", hide_default_value = true)]
    secret_key: String,
    /// The public key, in the same forms.
    #[arg(long, default_value = "", hide_default_value = true)]
    public_key: String,
    /// Algorithm of the public key.
    #[arg(long, default_value = "RS256")]
    public_alg: String,
    /// A set of public keys (JWKS), in the same forms.
    #[arg(long, default_value = "", hide_default_value = true)]
    jwks: String,
    /// Who it must be for (claim `aud`).
    #[arg(long, default_value = "", hide_default_value = true)]
    audience: String,
    /// Claim that holds the role.
    #[arg(long, default_value = "sub")]
    auth_claim: String,
    /// The token.
    token: String,
}

/// Runs one of them.
///
/// # Errors
/// A key that can't be used, or a token that is not valid.
pub fn run(command: TokensCommand) -> Result<(), Failure> {
    match command {
        TokensCommand::CreateSecretKey { output } => {
            let mut secret = [0; 32];
            std::fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
            write_new(&output, &secret, 0o600)
        }
        TokensCommand::CreateKeyPair { output_private_key, output_public_key, algorithm } => {
            let pair = KeyPair::generate_for(match algorithm {
                SignAs::Rs256 => &PKCS_RSA_SHA256,
                SignAs::Es256 => &PKCS_ECDSA_P256_SHA256,
            })?;
            write_new(&output_private_key, &pair.serialize_der(), 0o600)?;
            write_new(&output_public_key, &pair.subject_public_key_info(), 0o644)
        }
        TokensCommand::Create(args) => {
            println!("{}", create(&args)?);
            Ok(())
        }
        TokensCommand::Show { token } => {
            let decoded = jsonwebtoken::dangerous::insecure_decode::<Map<String, Value>>(token.trim())?;
            println!("{}", serde_json::to_string(&decoded.header)?);
            println!("{}", serde_json::to_string_pretty(&decoded.claims)?);
            Ok(())
        }
        TokensCommand::Validate(args) => {
            println!("{}", validate(args)?);
            Ok(())
        }
    }
}

fn create(args: &CreateArgs) -> Result<String, Failure> {
    let (key, algorithm) = match (&args.secret_key, &args.private_key) {
        (Some(secret), _) => (EncodingKey::from_secret(&source::load("--secret-key", secret)?)?, Algorithm::HS256),
        (None, Some(private)) => {
            (private_key(&source::load("--private-key", private)?, args.algorithm)?, args.algorithm.algorithm())
        }
        (None, None) => return Err("--secret-key or --private-key is needed".into()),
    };
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let mut claims = Map::new();
    claims.insert("sub".to_owned(), Value::from(args.subject.as_str()));
    if let Some(seconds) = args.expiry_s {
        claims.insert("exp".to_owned(), Value::from(now_s.saturating_add(seconds)));
    }
    if let Some(seconds) = args.not_before_s {
        claims.insert("nbf".to_owned(), Value::from(now_s.saturating_add(seconds)));
    }
    match args.audience.as_slice() {
        [] => {}
        [one] => drop(claims.insert("aud".to_owned(), Value::from(one.as_str()))),
        many => drop(claims.insert("aud".to_owned(), Value::from(many))),
    }
    let mut header = Header::new(algorithm);
    header.kid.clone_from(&args.key_id);
    Ok(jsonwebtoken::encode(&header, &claims, &key)?)
}

fn private_key(raw: &[u8], sign_as: SignAs) -> Result<EncodingKey, Failure> {
    let pem = if raw.starts_with(b"-----") { raw.to_vec() } else { as_pem("PRIVATE KEY", raw).into_bytes() };
    let key = match sign_as {
        SignAs::Rs256 => EncodingKey::from_rsa_pem(&pem),
        SignAs::Es256 => EncodingKey::from_ec_pem(&pem),
    };
    key.map_err(|error| format!("--private-key: is no private key for {:?}: {error}", sign_as.algorithm()).into())
}

fn validate(args: ValidateArgs) -> Result<String, Failure> {
    let token = TokenConfig {
        secret_key: args.secret_key,
        public_key: args.public_key,
        public_alg: args.public_alg,
        jwks: args.jwks,
        auth_claim: args.auth_claim,
        audience_claim: if args.audience.is_empty() { String::new() } else { "aud".to_owned() },
        audience: args.audience,
        ..TokenConfig::default()
    };
    let config = IdentityConfig { providers: vec!["token".to_owned()], token, ..IdentityConfig::default() };
    let principal = Identity::new(&config)?.authenticate("token", args.token.trim().as_bytes(), None)?;
    let end = match principal.expires_ms {
        Some(ms) => format!("ends at {} s since 1970", ms / 1000),
        None => "does not end".to_owned(),
    };
    Ok(format!("valid, role {}, {end}", principal.role))
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(bytes)).map_err(|error| format!("{}: {error}", path.display()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(secret: Option<String>, private: Option<String>, algorithm: SignAs) -> CreateArgs {
        CreateArgs {
            secret_key: secret,
            private_key: private,
            algorithm,
            subject: "ann".into(),
            expiry_s: Some(60),
            not_before_s: None,
            audience: vec!["west".into()],
            key_id: None,
        }
    }

    fn check(secret: &str, public: &str, alg: &str, audience: &str, token: &str) -> Result<String, Failure> {
        validate(ValidateArgs {
            secret_key: secret.into(),
            public_key: public.into(),
            public_alg: alg.into(),
            jwks: String::new(),
            audience: audience.into(),
            auth_claim: "sub".into(),
            token: token.into(),
        })
    }

    #[test]
    fn keys_sign_what_they_check() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name);
        let text = |name: &str| path(name).display().to_string();
        run(TokensCommand::CreateSecretKey { output: path("s") }).expect("it is made");
        assert!(run(TokensCommand::CreateSecretKey { output: path("s") }).is_err(), "never overwritten");
        let token = create(&args(Some(text("s")), None, SignAs::Rs256)).expect("a token");
        assert!(check(&text("s"), "", "RS256", "west", &token).expect("valid").starts_with("valid, role ann, ends"));
        assert!(check(&text("s"), "", "RS256", "east", &token).is_err());
        for (algorithm, name) in [(SignAs::Rs256, "RS256"), (SignAs::Es256, "ES256")] {
            run(TokensCommand::CreateKeyPair {
                output_private_key: path(&format!("{name}.key")),
                output_public_key: path(&format!("{name}.pub")),
                algorithm,
            })
            .expect("they are made");
            let token = create(&args(None, Some(text(&format!("{name}.key"))), algorithm)).expect("a token");
            assert!(check("", &text(&format!("{name}.pub")), name, "", &token).is_ok(), "{name}");
            assert!(check(&text("s"), "", name, "", &token).is_err(), "{name}");
        }
        assert!(create(&args(None, Some(text("RS256.key")), SignAs::Es256)).is_err(), "another kind of key");
    }
}
