//! The `Operations` service: one verb for all tasks that match, and what operators did.
//! `api/operations` does the work, and `api/http/operations` has the form of the filter, which is
//! kept as JSON.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Invalid, Timestamp};
use punctual_proto::v1;
use tonic::{Request, Response, Status};

use super::caller::{action, authorized_namespace, identify};
use super::convert;
use super::reads::{limit, refused};
use crate::actions::ActionDetail;
use crate::api::http::operations::{WhereBody, find, parse_verb};
use crate::api::operation_list::{BulkOperation, Progress};
use crate::api::operations::{self, DryRun, NewOperation, dry_run};
use crate::broker::Broker;
use crate::gather_measures::sum_actions;
use crate::peer::put_action;
use crate::task_form::{TimeValue, WholeNumber};

#[derive(Debug)]
pub(super) struct OperationsApi {
    broker: Arc<Broker>,
}

impl OperationsApi {
    pub(super) fn new(broker: Arc<Broker>) -> Self {
        Self { broker }
    }

    /// The operation that a request names, if its caller may see it.
    fn named(&self, request: &Request<v1::OperationRequest>) -> Result<Arc<BulkOperation>, Status> {
        let v1::OperationRequest { namespace, id } = request.get_ref();
        let namespace = authorized_namespace(request, namespace)?;
        find(&self.broker, &namespace, id).map_err(refused)
    }
}

#[tonic::async_trait]
impl v1::operations_server::Operations for OperationsApi {
    async fn start(
        &self,
        request: Request<v1::StartOperationRequest>,
    ) -> Result<Response<v1::StartOperationResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let by = identify(&request)?.identity.name_in(&namespace);
        let action = action(&self.broker, &request, &namespace, "start_operation", "")?;
        let v1::StartOperationRequest { verb, r#where, dry_run: only_count, later_ms, .. } =
            request.into_inner();
        let later = (later_ms != 0).then(|| Duration::from_millis(later_ms));
        // As over HTTP: everything must be said, not left out.
        let filter = r#where.ok_or_else(|| Invalid::new("where", "must be given"));
        let filter = where_body(filter.map_err(convert::invalid)?);
        let verb = parse_verb(&verb, later).map_err(convert::invalid)?;
        let selection = filter.selection().map_err(refused)?;
        let selection = selection.of_verb(verb).map_err(convert::invalid)?;
        let mut answer = v1::StartOperationResponse::default();
        if only_count {
            let counted = dry_run(&self.broker, &namespace, &selection).await.map_err(refused)?;
            let DryRun { matched, exact, sample } = counted;
            let (matched, sample) = (matched as u64, sample.iter().map(convert::task).collect());
            answer.dry_run = Some(v1::OperationDryRun { matched, exact, sample });
        } else {
            let new = NewOperation { namespace, verb, selection, filter: filter.to_json(), by };
            let started = operations::start(&self.broker, new).map_err(refused)?;
            answer.operation = Some(operation(&started));
            action.end(started.as_action());
        }
        Ok(Response::new(answer))
    }

    async fn get(
        &self,
        request: Request<v1::OperationRequest>,
    ) -> Result<Response<v1::Operation>, Status> {
        Ok(Response::new(operation(&*self.named(&request)?)))
    }

    async fn list(
        &self,
        request: Request<v1::OperationsRequest>,
    ) -> Result<Response<v1::OperationsResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let operations = self.broker.operations.list(&namespace);
        let operations = operations.iter().map(|it| operation(it)).collect();
        Ok(Response::new(v1::OperationsResponse { operations }))
    }

    async fn stop(
        &self,
        request: Request<v1::OperationRequest>,
    ) -> Result<Response<v1::Operation>, Status> {
        let found = self.named(&request)?;
        let v1::OperationRequest { id, .. } = request.get_ref();
        let action = action(&self.broker, &request, &found.namespace, "stop_operation", id)?;
        found.stop();
        action.end(ActionDetail::default());
        Ok(Response::new(operation(&found)))
    }

    async fn actions(
        &self,
        request: Request<v1::ActionsRequest>,
    ) -> Result<Response<v1::ActionsResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let limit = limit(request.get_ref().limit);
        let _permit = self.broker.limits.reads.acquire(&namespace).await.map_err(refused)?;
        let found = sum_actions(&self.broker, &namespace).await;
        let actions = found.sum.actions.into_iter().take(limit).map(put_action).collect();
        let since_ms = found.sum.since.as_millis();
        Ok(Response::new(v1::ActionsResponse { actions, since_ms, complete: found.all_answered }))
    }
}

fn where_body(filter: v1::TaskFilter) -> WhereBody {
    let v1::TaskFilter { state, kind, key_prefix, label, from_ms, to_ms } = filter;
    let text = |text: String| (!text.is_empty()).then_some(text);
    let time = |millis: u64| {
        (millis != 0)
            .then(|| TimeValue::Millis(WholeNumber(i64::try_from(millis).unwrap_or(i64::MAX))))
    };
    WhereBody {
        state: text(state),
        kind: text(kind),
        key_prefix: text(key_prefix),
        label: text(label),
        from: time(from_ms),
        to: time(to_ms),
    }
}

fn task_filter(kept: &BulkOperation) -> v1::TaskFilter {
    let Ok(filter) = serde_json::from_value::<WhereBody>(kept.filter.clone()) else {
        return v1::TaskFilter::default();
    };
    let millis = |time: Option<TimeValue>| {
        let at = time.and_then(|time| time.to_timestamp("time").ok());
        at.map_or(0, Timestamp::as_millis)
    };
    v1::TaskFilter {
        state: filter.state.unwrap_or_default(),
        kind: filter.kind.unwrap_or_default(),
        key_prefix: filter.key_prefix.unwrap_or_default(),
        label: filter.label.unwrap_or_default(),
        from_ms: millis(filter.from),
        to_ms: millis(filter.to),
    }
}

fn operation(kept: &BulkOperation) -> v1::Operation {
    let Progress { state, matched, changed, failed, ended_at, problem } = kept.progress();
    v1::Operation {
        id: kept.id.to_string(),
        verb: kept.verb.name().to_owned(),
        later_ms: kept.verb.later().map_or(0, convert::as_millis),
        r#where: Some(task_filter(kept)),
        state: state.name().to_owned(),
        matched,
        changed,
        failed,
        started_at_ms: kept.started_at.as_millis(),
        ended_at_ms: ended_at.map_or(0, Timestamp::as_millis),
        by: kept.by.clone(),
        problem: problem.unwrap_or_default(),
    }
}
