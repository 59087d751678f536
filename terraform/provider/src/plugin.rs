//! Being a plugin: the handshake by which Terraform starts and trusts this process, and the server behind it.
//!
//! Role: one line on standard output says version, address and certificate; then gRPC over mutual TLS on a socket of a
//! folder that only this user can enter.
//! Invariants: P1 only who shows the very certificate that was handed over in the environment is let in, and proves to
//! have its key; P2 the own certificate is made anew for every process; P3 the process ends when it is
//! asked to.
//! Failure: started by hand it says what it is for, and ends with 1.

use crate::proto::plugin::Empty;
use crate::proto::plugin::grpc_controller_server::{GrpcController, GrpcControllerServer};
use crate::protocol::provider_server::ProviderServer;
use crate::provider::Meridian;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Any failure that ends the process.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What Terraform sets to say that it is Terraform.
const COOKIE_NAME: &str = "TF_PLUGIN_MAGIC_COOKIE";
const COOKIE: &str = "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2";
/// The certificate of the one client.
const CLIENT_CERTIFICATE: &str = "PLUGIN_CLIENT_CERT";
/// Versions of the protocol that the client speaks.
const VERSIONS: &str = "PLUGIN_PROTOCOL_VERSIONS";
/// How long a handshake may take.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Connections that were let in and not yet taken over.
const WAITING: usize = 8;
/// Largest message, as Terraform's own limit.
const MESSAGE_BYTES: usize = 256 << 20;

/// Lets in one certificate (P1).
#[derive(Debug)]
struct TheClient {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for TheClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // The client's certificate is its own authority, so that there is no chain to check: it is this one or none.
        match *end_entity == self.certificate {
            true => Ok(ClientCertVerified::assertion()),
            false => Err(Error::General("not the certificate that was handed over".to_owned())),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The own certificate as it is announced, and what a server needs to use it (P2).
fn trust(client: CertificateDer<'static>) -> Result<(String, ServerConfig), Failure> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let (certificate, key) = (made.cert.der().clone(), made.signing_key.serialize_der());
    let announced = STANDARD_NO_PAD.encode(&certificate);
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Arc::new(TheClient { certificate: client, provider: provider.clone() });
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok((announced, config))
}

/// Ends the process when it is asked to (P3).
struct Controller(Arc<Notify>);

#[tonic::async_trait]
impl GrpcController for Controller {
    async fn shutdown(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.0.notify_one();
        Ok(Response::new(Empty {}))
    }
}

/// Serves until it is asked to end.
///
/// # Errors
/// It was not started by Terraform, or can't listen.
pub async fn serve() -> Result<(), Failure> {
    if std::env::var(COOKIE_NAME).is_ok_and(|cookie| cookie == COOKIE) {
        return listen().await;
    }
    Err("this is Meridian's provider for Terraform: terraform starts it, see docs/guides/terraform.md".into())
}

async fn listen() -> Result<(), Failure> {
    let versions = std::env::var(VERSIONS).unwrap_or_default();
    if !versions.is_empty() && !versions.split(',').any(|version| version.trim() == "6") {
        return Err(
            format!("terraform speaks plugin protocols {versions}; this provider speaks 6 (Terraform 1.0)").into()
        );
    }
    let pem = std::env::var(CLIENT_CERTIFICATE).map_err(|_| format!("{CLIENT_CERTIFICATE} is not set"))?;
    let client =
        CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| format!("{CLIENT_CERTIFICATE}: {error}"))?;
    let (announced, config) = trust(client)?;
    let folder = tempfile::Builder::new().prefix("meridian-terraform-").tempdir()?;
    let socket = folder.path().join("provider");
    let listener = UnixListener::bind(&socket)?;
    let end = Arc::new(Notify::new());
    announce(&format!("1|6|unix|{}|grpc|{announced}", socket.display()))?;
    let (sender, connections) = mpsc::channel(WAITING);
    let accepting = tokio::spawn(accept(listener, TlsAcceptor::from(Arc::new(config)), sender));
    let provider = ProviderServer::new(Meridian::default())
        .max_decoding_message_size(MESSAGE_BYTES)
        .max_encoding_message_size(MESSAGE_BYTES);
    let served = tonic::transport::Server::builder()
        .add_service(provider)
        .add_service(GrpcControllerServer::new(Controller(end.clone())))
        .serve_with_incoming_shutdown(ReceiverStream::new(connections), async move { end.notified().await })
        .await;
    accepting.abort();
    Ok(served?)
}

/// The one line by which the process is found.
fn announce(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

async fn accept(
    listener: UnixListener,
    acceptor: TlsAcceptor,
    connections: mpsc::Sender<Result<TlsStream<UnixStream>, std::io::Error>>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, connections) = (acceptor.clone(), connections.clone());
        tokio::spawn(async move {
            // Who is not let in is none of the server's business.
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await {
                let _ = connections.send(Ok(stream)).await;
            }
        });
    }
}
