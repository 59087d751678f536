//! The running server: socket, certificates, its own runtime, and the handle that a test holds.
//!
//! Invariants: stopping cuts all connections at once, as a killed process would; a restart on the same address with
//! the same folder goes on with the same data.
//! Failure: [`StartError`].
//! Must never know: requests.

use crate::faults::Faults;
use crate::journal::JournalError;
use crate::pb::pdpb::pd_server::PdServer;
use crate::pb::tikvpb::tikv_server::TikvServer;
use crate::pd::PdService;
use crate::regions::Regions;
use crate::state::State;
use crate::store_service::StoreService;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

/// Largest message either way.
const MAX_MESSAGE_BYTES: usize = 512 * 1024 * 1024;

/// Certificate files, PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// Who signs the clients' certificates.
    pub ca: PathBuf,
    /// The server's chain.
    pub cert: PathBuf,
    /// The server's key.
    pub key: PathBuf,
}

/// How to start a server.
#[derive(Debug, Clone)]
pub struct TikvOptions {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The folder that keeps the data over a restart; `None` = memory only.
    pub data_dir: Option<PathBuf>,
    /// Into how many regions the keys after `region_prefix` are cut.
    pub regions: usize,
    /// See `regions`.
    pub region_prefix: Vec<u8>,
    /// Explicit cuts in place of `regions`.
    pub region_cuts: Vec<Vec<u8>>,
    /// Mutual TLS.
    pub tls: Option<TlsFiles>,
}

impl Default for TikvOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            data_dir: None,
            regions: 1,
            region_prefix: Vec::new(),
            region_cuts: Vec::new(),
            tls: None,
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The socket, a certificate file or the runtime.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The data folder.
    #[error("{0}")]
    Journal(#[from] JournalError),
    /// The certificates.
    #[error("TLS: {0}")]
    Tls(#[from] tonic::transport::Error),
}

/// A running server; dropping it kills it.
#[derive(Debug)]
pub struct MiniTikv {
    address: SocketAddr,
    faults: Faults,
    state: Arc<Mutex<State>>,
    runtime: Option<tokio::runtime::Runtime>,
}

fn tls_config(files: &TlsFiles) -> Result<ServerTlsConfig, std::io::Error> {
    let identity = Identity::from_pem(std::fs::read(&files.cert)?, std::fs::read(&files.key)?);
    let authority = Certificate::from_pem(std::fs::read(&files.ca)?);
    Ok(ServerTlsConfig::new().identity(identity).client_ca_root(authority))
}

impl MiniTikv {
    /// Starts a server on its own threads.
    ///
    /// # Errors
    /// Socket, folder or certificates can't be used.
    pub fn start(options: &TikvOptions) -> Result<Self, StartError> {
        let cut = |epoch| {
            if options.region_cuts.is_empty() {
                Regions::new(options.regions, &options.region_prefix, epoch)
            } else {
                Regions::at(&options.region_cuts, epoch)
            }
        };
        let state = Arc::new(Mutex::new(State::open(options.data_dir.as_deref(), cut)?));
        let faults = Faults::default();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("mini-tikv")
            .enable_all()
            .build()?;
        let listener = std::net::TcpListener::bind(options.listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let entered = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut builder = Server::builder();
        if let Some(files) = &options.tls {
            builder = builder.tls_config(tls_config(files)?)?;
        }
        let store = StoreService { state: state.clone(), faults: faults.clone() };
        let pd = PdService {
            state: state.clone(),
            faults: faults.clone(),
            address: address.to_string(),
            tls: options.tls.is_some(),
        };
        let store = TikvServer::new(store)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let router = builder.add_service(store).add_service(PdServer::new(pd));
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        runtime.spawn(router.serve_with_incoming(incoming));
        drop(entered);
        Ok(Self { address, faults, state, runtime: Some(runtime) })
    }

    /// Where it listens, as placement driver and as store.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What goes wrong.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Moves the clock of time stamps ahead for good.
    pub fn jump(&self, by_ms: u64) {
        self.state.lock().jump(by_ms);
    }

    /// Makes every client's picture of the regions stale, as a split does.
    ///
    /// # Errors
    /// The journal can't be written.
    pub fn raise_epoch(&self) -> Result<(), JournalError> {
        self.state.lock().raise_epoch()
    }

    /// Versions stored of all keys.
    pub fn versions(&self) -> usize {
        self.state.lock().versions()
    }

    /// Locks that are held.
    pub fn locks(&self) -> usize {
        self.state.lock().keys().scan_locks(b"", b"", u64::MAX, 0).len()
    }

    /// Kills it: all connections are cut.
    pub fn kill(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for MiniTikv {
    fn drop(&mut self) {
        self.shut_down();
    }
}
