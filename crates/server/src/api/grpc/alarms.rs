//! The `Alarms` service. `api/alarms` does the work; `convert/alarms` converts messages.

use std::sync::Arc;

use punctual_core::{AlarmName, Invalid, Namespace};
use punctual_proto::v1;
use tonic::{Request, Response, Status};

use super::caller::{action, authorized_namespace};
use super::convert::{self, alarms, to_status};
use crate::actions::ActionDetail;
use crate::api::alarms::{PutView, delete_alarm, list_alarms, put_alarm, show_alarm, test_alarm};
use crate::broker::Broker;
use crate::problem::Problem;

#[derive(Debug)]
pub(super) struct AlarmsApi {
    broker: Arc<Broker>,
}

impl AlarmsApi {
    pub(super) fn new(broker: Arc<Broker>) -> Self {
        Self { broker }
    }
}

fn refused(problem: Problem) -> Status {
    to_status(&problem)
}

/// The namespace and the name that a call has, if its caller may use the namespace.
fn named(request: &Request<v1::AlarmRequest>) -> Result<(Namespace, AlarmName), Status> {
    let v1::AlarmRequest { namespace, name } = request.get_ref();
    let namespace = authorized_namespace(request, namespace)?;
    Ok((namespace, AlarmName::new(name).map_err(convert::invalid)?))
}

#[tonic::async_trait]
impl v1::alarms_server::Alarms for AlarmsApi {
    async fn put(
        &self,
        request: Request<v1::PutAlarmRequest>,
    ) -> Result<Response<v1::PutAlarmResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let name = &request.get_ref().name;
        let action = action(&self.broker, &request, &namespace, "put_alarm", name)?;
        let v1::PutAlarmRequest { name, rule, .. } = request.into_inner();
        let name = AlarmName::new(&name).map_err(convert::invalid)?;
        let rule = rule.ok_or_else(|| convert::invalid(Invalid::new("rule", "must be given")))?;
        let rule = alarms::rule(rule).map_err(convert::invalid)?;
        let _permit = self.broker.limits.reads.acquire(&namespace).await.map_err(refused)?;
        let put = put_alarm(&self.broker, &namespace, &name, &rule).await.map_err(refused)?;
        let (view, replaced) = match &put {
            PutView::Created(view) => (view, false),
            PutView::Replaced(view) => (view, true),
        };
        let alarm = Some(alarms::alarm(view));
        action.end(ActionDetail::default());
        Ok(Response::new(v1::PutAlarmResponse { alarm, replaced }))
    }

    async fn get(&self, request: Request<v1::AlarmRequest>) -> Result<Response<v1::Alarm>, Status> {
        let (namespace, name) = named(&request)?;
        let _permit = self.broker.limits.reads.acquire(&namespace).await.map_err(refused)?;
        let view = show_alarm(&self.broker, &namespace, &name).await.map_err(refused)?;
        Ok(Response::new(alarms::alarm(&view)))
    }

    async fn list(
        &self,
        request: Request<v1::AlarmsRequest>,
    ) -> Result<Response<v1::AlarmsResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let _permit = self.broker.limits.reads.acquire(&namespace).await.map_err(refused)?;
        let views = list_alarms(&self.broker, &namespace).await.map_err(refused)?;
        let alarms = views.iter().map(alarms::alarm).collect();
        Ok(Response::new(v1::AlarmsResponse { alarms }))
    }

    async fn delete(
        &self,
        request: Request<v1::AlarmRequest>,
    ) -> Result<Response<v1::DeleteAlarmResponse>, Status> {
        let (namespace, name) = named(&request)?;
        let action = action(&self.broker, &request, &namespace, "delete_alarm", name.as_str())?;
        delete_alarm(&self.broker, &namespace, &name).await.map_err(refused)?;
        action.end(ActionDetail::default());
        Ok(Response::new(v1::DeleteAlarmResponse {}))
    }

    async fn test(
        &self,
        request: Request<v1::AlarmRequest>,
    ) -> Result<Response<v1::AlarmNotice>, Status> {
        let (namespace, name) = named(&request)?;
        let _permit = self.broker.limits.streams.try_acquire(&namespace).map_err(refused)?;
        let action = action(&self.broker, &request, &namespace, "test_alarm", name.as_str())?;
        let notice = test_alarm(&self.broker, &namespace, &name).await.map_err(refused)?;
        action.end(ActionDetail::default());
        Ok(Response::new(alarms::notice(&notice)))
    }
}
