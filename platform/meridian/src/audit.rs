//! The audit log of a process: its file, and the topic that has the same records.
//!
//! Failure: a file that can't be written ends the start; the topic is made when the first record comes.

use crate::cli::Failure;
use meridian_audit::{AuditConfig, AuditLog, AuditTopic, BoxFuture};
use meridian_broker::BrokerService;
use meridian_broker::service::Appender;
use meridian_policy::{Retention, TopicPolicies};
use meridian_registry::{Registry, RegistryError};
use meridian_settings::{Key, Settings};
use meridian_types::TopicName;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Where the records are published.
const TOPIC: &str = "persistent://pulsar/system/audit";
/// Why a broker does not start that was to keep records and has no place for them.
const NOWHERE: &str = "auditEnabled=true, but records have no place: auditLogFile is not set, there is no data folder, and \
                       auditTopicEnabled=false; expected one of them, or auditEnabled=false";
/// How long the last records may take at the end of the process.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// Starts the log; `None` if it is switched off.
///
/// # Errors
/// The file can't be written, or records have no place at all.
pub fn start(
    settings: &Settings,
    data_dir: Option<&Path>,
    metrics: &prometheus::Registry,
    service: &Arc<BrokerService>,
) -> Result<Option<Arc<AuditLog>>, Failure> {
    if !settings.switch(Key::AuditEnabled) {
        return Ok(None);
    }
    let file: Option<PathBuf> = match settings.text(Key::AuditLogFile) {
        "" => data_dir.map(|folder| folder.join("audit").join("audit.log")),
        path => Some(path.into()),
    };
    match (&file, settings.switch(Key::AuditTopicEnabled)) {
        (None, false) => return Err(NOWHERE.into()),
        (None, true) => tracing::warn!(
            "administrative changes are recorded in {TOPIC} alone: auditLogFile is not set, and there is no data folder"
        ),
        (Some(_), _) => {}
    }
    let shown = file.as_deref().map(Path::display).map(|path| path.to_string()).unwrap_or_default();
    let config = AuditConfig {
        region: settings.text(Key::ClusterName).to_owned(),
        node: service.ownership().me().id.clone(),
        file,
        file_bytes: settings.count(Key::AuditLogMaxFileSizeMB).max(1) << 20,
        queue: usize::try_from(settings.count(Key::AuditQueueSize)).unwrap_or(usize::MAX).clamp(1, 1 << 20),
    };
    let log = AuditLog::start(config, metrics).map_err(|error| format!("auditLogFile={shown}: {error}"))?;
    if settings.switch(Key::AuditTopicEnabled) {
        let topic = TopicName::parse(TOPIC)?;
        let appender = Appender::new(service, topic.clone(), BTreeMap::new());
        log.set_topic(Arc::new(Published { appender, topic, registry: service.registry().clone() }));
    }
    Ok(Some(log))
}

/// Writes what is there and ends.
pub async fn close(log: Option<&Arc<AuditLog>>) {
    if let Some(log) = log {
        log.close(CLOSE_LIMIT).await;
    }
}

struct Published {
    appender: Appender,
    topic: TopicName,
    registry: Arc<Registry>,
}

impl Published {
    /// Nobody subscribes at first: without a retention of its own the topic would drop what it holds.
    async fn keep_records(&self) -> Result<(), RegistryError> {
        if self.registry.topic_policies(&self.topic).is_some_and(|policies| policies.retention.is_some()) {
            return Ok(());
        }
        let keep = |policies: &mut TopicPolicies| {
            policies.retention.get_or_insert(Retention { time_minutes: -1, size_mib: -1 });
            Ok::<(), RegistryError>(())
        };
        self.registry.update_topic_policies(&self.topic, keep).await
    }
}

impl AuditTopic for Published {
    fn append(&self, lines: Vec<bytes::Bytes>) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.keep_records().await.map_err(|error| error.to_string())?;
            self.appender.append(lines).await
        })
    }
}
