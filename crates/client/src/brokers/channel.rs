//! Channels that add the token of the client to every call.
//!
//! A token that cannot be a header is [`Error::Token`]. `brokers` opens the connections, and
//! `send_state` tracks whether a request was sent.

use punctual_proto::v1::tasks_client::TasksClient;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::Error;
use crate::brokers::send_state::TrackSend;

pub(crate) type AuthorizedChannel = InterceptedService<Channel, Bearer>;
/// A channel for one call, which records whether it was sent.
pub(crate) type TrackedChannel = TrackSend<AuthorizedChannel>;
pub(crate) type TasksStub = TasksClient<TrackedChannel>;

/// Adds the token to every call.
#[derive(Debug, Clone)]
pub(crate) struct Bearer(Option<MetadataValue<Ascii>>);

impl Bearer {
    pub(crate) fn new(token: Option<&str>) -> Result<Self, Error> {
        token.map(header).transpose().map(Self)
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

fn header(token: &str) -> Result<MetadataValue<Ascii>, Error> {
    let mut value: MetadataValue<Ascii> =
        format!("Bearer {token}").parse().map_err(|_| Error::Token)?;
    value.set_sensitive(true);
    Ok(value)
}
