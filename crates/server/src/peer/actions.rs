//! Encodes what operators did, as protobuf messages. What a peer sends is untrusted: lists are
//! bounded.

use punctual_core::Timestamp;
use punctual_proto::v1;

use super::wire::WireError;
use crate::actions::{ActionList, KEPT_MAX, OperatorAction};

pub(super) fn put_actions(list: ActionList) -> v1::ActionsReply {
    let actions = list.actions.into_iter().map(put_action).collect();
    v1::ActionsReply { since_ms: list.since.as_millis(), actions }
}

pub(crate) fn put_action(action: OperatorAction) -> v1::Action {
    let OperatorAction { at, call, by, name, detail, changed } = action;
    v1::Action { at_ms: at.as_millis(), call, by, name, detail, changed }
}

pub(super) fn read_actions(reply: v1::ActionsReply) -> Result<ActionList, WireError> {
    if reply.actions.len() > KEPT_MAX {
        return Err(WireError::TooMany(KEPT_MAX));
    }
    let read = |action: v1::Action| {
        let v1::Action { at_ms, call, by, name, detail, changed } = action;
        OperatorAction { at: Timestamp::from_millis(at_ms), call, by, name, detail, changed }
    };
    let actions = reply.actions.into_iter().map(read).collect();
    Ok(ActionList { since: Timestamp::from_millis(reply.since_ms), actions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_read_back_unchanged_and_too_many_are_refused() {
        let action = |changed| OperatorAction {
            at: Timestamp::from_millis(1_700_000_000_000),
            call: "cancel_tasks".to_owned(),
            by: "shop:operate".to_owned(),
            name: "order-1".to_owned(),
            detail: "2 keys".to_owned(),
            changed,
        };
        let list = ActionList {
            since: Timestamp::from_millis(5),
            actions: vec![action(Some(0)), action(None)],
        };
        assert_eq!(read_actions(put_actions(list.clone())), Ok(list));
        let actions = vec![v1::Action::default(); KEPT_MAX + 1];
        assert!(read_actions(v1::ActionsReply { since_ms: 0, actions }).is_err());
    }
}
