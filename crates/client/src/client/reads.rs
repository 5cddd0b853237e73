//! Calls of no namespace: what the token grants, the list of namespaces, and the preview of a cron
//! expression.
//!
//! All of them only read, so the client repeats them.

use punctual_proto::v1;

use super::Client;
use crate::brokers::channel::TasksStub;
use crate::client::unary::RetryWhen;
use crate::record::NextFire;
use crate::wire::non_empty;
use crate::{Error, Gap, Timestamp, Twice};

impl Client {
    /// Returns what the token of this client grants, and which broker answers.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 401 if the broker requires another token; any other
    /// [`Error`].
    pub async fn whoami(&self) -> Result<WhoAmI, Error> {
        let call = |mut tasks: TasksStub| async move { tasks.who_am_i(v1::WhoAmIRequest {}).await };
        let answer = self.state.unary().call(RetryWhen::Always, call).await?;
        let granted = |it: v1::GrantedNamespace| (it.name, it.rights);
        Ok(WhoAmI {
            tokens: answer.tokens,
            admin: answer.admin,
            namespaces: answer.namespaces.into_iter().map(granted).collect(),
            broker: answer.broker,
            cluster: non_empty(answer.cluster),
            store: answer.store,
            version: answer.version,
            time: Timestamp::from_millis(answer.time_ms),
        })
    }

    /// Returns a page of all namespaces that ever had a task, by name: at most `limit`, after the
    /// [`NamespacePage::next`] of another page. Needs an admin token.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 403 if the token is of a namespace; any other [`Error`].
    pub async fn namespaces(
        &self,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<NamespacePage, Error> {
        let request = v1::NamespacesRequest { limit, cursor: cursor.unwrap_or_default() };
        let call = |mut tasks: TasksStub| {
            let request = request.clone();
            async move { tasks.namespaces(request).await }
        };
        let answer = self.state.unary().call(RetryWhen::Always, call).await?;
        let namespaces = answer.namespaces.into_iter().map(namespace_info).collect();
        Ok(NamespacePage { namespaces, next: non_empty(answer.next) })
    }

    /// Returns the brokers of the cluster and their partitions, as in the HTTP API.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn topology(&self) -> Result<serde_json::Value, Error> {
        let (call, none) = (self.state.unary(), serde_json::Value::Null);
        call.json(RetryWhen::Always, "GET", "/v1/topology", &none).await
    }

    /// Shows the next fires of a cron expression. Nothing is scheduled.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 422 that names what is wrong with the expression; any other
    /// [`Error`].
    pub async fn preview(&self, cron: CronExpression) -> Result<CronPreview, Error> {
        let call = |mut tasks: TasksStub| {
            let request = cron.0.clone();
            async move { tasks.preview(request).await }
        };
        let answer = self.state.unary().call(RetryWhen::Always, call).await?;
        let fires = answer.fires.into_iter().map(|fire| NextFire {
            fire_at: Timestamp::from_millis(fire.fire_at_ms),
            local: fire.local,
            why: non_empty(fire.note),
        });
        Ok(CronPreview {
            cron: answer.cron,
            timezone: answer.timezone,
            fires: fires.collect(),
            timezone_data: answer.timezone_data,
        })
    }
}

fn namespace_info(namespace: v1::NamespaceInfo) -> NamespaceInfo {
    NamespaceInfo {
        name: namespace.name,
        accepted: namespace.accepted,
        scheduled: namespace.scheduled,
        paused: namespace.paused,
        done: namespace.done,
        dead: namespace.dead,
        cancelled: namespace.cancelled,
        dead_letters: namespace.dead_letters,
    }
}

/// What a token grants, and which broker says so.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WhoAmI {
    /// Whether the broker has tokens. Without any, every caller is an admin.
    pub tokens: bool,
    /// Whether the token is an admin token, which grants everything.
    pub admin: bool,
    /// The rights of the token by namespace (`read`, `produce`, `consume`, `operate`); empty for
    /// an admin.
    pub namespaces: Vec<(String, Vec<String>)>,
    /// `HOST:PORT` of the broker that answers.
    pub broker: String,
    /// The name of the cluster; `None` if the broker shares its store with no other.
    pub cluster: Option<String>,
    /// Where tasks are kept: `memory`, `embedded` or `redis`.
    pub store: String,
    /// The version of the broker.
    pub version: String,
    /// The time of the broker.
    pub time: Timestamp,
}

/// A page of namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamespacePage {
    /// By name. A page may be short or empty and still have a next one.
    pub namespaces: Vec<NamespaceInfo>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<String>,
}

/// A namespace and its tasks by state, as the store counts them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamespaceInfo {
    /// The name of the namespace.
    pub name: String,
    /// Tasks that were ever accepted: the sum of all states.
    pub accepted: i64,
    /// Tasks that wait for their time or for the next attempt, or have an attempt in flight.
    pub scheduled: i64,
    /// Tasks that wait to be resumed.
    pub paused: i64,
    /// Tasks whose last fire succeeded.
    pub done: i64,
    /// Tasks whose last fire became a dead letter.
    pub dead: i64,
    /// Tasks that were cancelled.
    pub cancelled: i64,
    /// Dead letters that are retained.
    pub dead_letters: i64,
}

/// A cron expression to preview. By default in UTC, five fires from now on.
#[derive(Debug, Clone)]
#[must_use = "an expression does nothing until it is passed to `preview`"]
pub struct CronExpression(v1::PreviewRequest);

impl CronExpression {
    /// An expression of five fields, six with seconds first, seven with years last, or `@daily`
    /// and the like.
    pub fn new(expression: impl Into<String>) -> Self {
        let cron = v1::Cron { expression: expression.into(), ..v1::Cron::default() };
        Self(v1::PreviewRequest { cron: Some(cron), ..v1::PreviewRequest::default() })
    }

    /// The time zone of its times, an IANA name.
    pub fn timezone(mut self, timezone: impl Into<String>) -> Self {
        self.cron().timezone = timezone.into();
        self
    }

    /// When a local time fires that the clocks skip.
    pub fn dst_gap(mut self, gap: Gap) -> Self {
        self.cron().dst_gap = v1::Gap::from(gap).into();
        self
    }

    /// When a local time fires that the clocks show twice.
    pub fn dst_overlap(mut self, twice: Twice) -> Self {
        self.cron().dst_overlap = v1::Twice::from(twice).into();
        self
    }

    /// How many fires to show, 1 to 100.
    pub fn count(mut self, count: u32) -> Self {
        self.0.count = count;
        self
    }

    /// Only fires after this instant.
    pub fn from(mut self, from: impl Into<Timestamp>) -> Self {
        self.0.from_ms = Some(from.into().as_millis());
        self
    }

    fn cron(&mut self) -> &mut v1::Cron {
        self.0.cron.get_or_insert_default()
    }
}

/// The next fires of a cron expression.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CronPreview {
    /// The expression with one space between fields.
    pub cron: String,
    /// The IANA name of the time zone.
    pub timezone: String,
    /// In order; fewer than asked for if the expression has no more. [`NextFire::why`] says how a
    /// clock change affects a fire.
    pub fires: Vec<NextFire>,
    /// The release of the IANA time zone database that the broker uses.
    pub timezone_data: String,
}
