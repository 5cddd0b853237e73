//! Views of lanes: what an owner says about tasks that wait.

use crate::fixture::{OwnerFixture, keyed, once, secs, shop};
use punctual_core::{HttpTarget, Method, NewTask, Outcome, Queue, Reason, Target};
use punctual_engine::{Condition, Event, LaneQuery, LaneTarget, LaneView, OwnerView};
use tokio::sync::oneshot;

fn view(fixture: &mut OwnerFixture, query: LaneQuery) -> OwnerView {
    let (reply, mut view) = oneshot::channel();
    fixture.owner.on(Event::View(shop(), query, reply), fixture.now);
    view.try_recv().unwrap()
}

#[test]
fn a_view_has_what_waits_and_what_is_in_flight() {
    let mut fixture = OwnerFixture::new();
    let due = fixture.now;
    fixture.run();
    assert_eq!(view(&mut fixture, LaneQuery::Queues), OwnerView::default());
    fixture.set_capacity(2);
    for n in 0..5 {
        drop(fixture.send_schedule(keyed(&format!("order-{n}"), secs(0)), Condition::Always));
    }
    let hook = HttpTarget::new("http://127.0.0.1:9/a", Method::Post, vec![]).unwrap();
    fixture.schedule(NewTask { target: Target::Http(hook), ..once(secs(0)) });
    fixture.advance(secs(0));
    let queue = once(secs(0)).target.clone();
    let lane = LaneView {
        starved_since: None,
        target: Some(LaneTarget::of(&queue)),
        waiting: 3,
        unsent: 0,
        in_flight: 2,
        capacity: 2,
        spilled_since: None,
        oldest_overdue: Some(due),
        slow: false,
        failed: 0,
        last_failure: None,
    };
    assert_eq!(view(&mut fixture, LaneQuery::Queues).lanes, std::slice::from_ref(&lane));
    assert_eq!(view(&mut fixture, LaneQuery::Lane(LaneTarget::of(&queue))).lanes, [lane]);
    let other = HttpTarget::new("http://127.0.0.1:9/b", Method::Post, vec![]).unwrap();
    let lane = LaneTarget::of(&Target::Http(other));
    let webhook = view(&mut fixture, LaneQuery::Lane(lane)).lanes;
    assert_eq!((webhook.len(), webhook[0].in_flight, webhook[0].queue()), (1, 1, None));
    let unused = LaneQuery::Lane(LaneTarget::Queue(Queue::new("unused").unwrap()));
    assert!(view(&mut fixture, unused).lanes.is_empty());
    assert_eq!(view(&mut fixture, LaneQuery::All).lanes.len(), 2, "the queue and the webhook");
}

#[test]
fn a_parked_lane_says_since_when_its_tasks_wait_in_the_store() {
    let mut fixture = OwnerFixture::new();
    fixture.set_capacity(0);
    let due = fixture.now;
    fixture.schedule(once(secs(0)));
    fixture.advance(secs(15));
    let lanes = view(&mut fixture, LaneQuery::Queues).lanes;
    assert_eq!((lanes[0].waiting, lanes[0].capacity), (0, 0), "{lanes:?}");
    assert_eq!((lanes[0].spilled_since, lanes[0].oldest_overdue), (Some(due), Some(due)));
}

#[test]
fn a_lane_whose_tasks_all_wait_for_a_retry_still_says_that_it_has_failed() {
    let mut fixture = OwnerFixture::new();
    fixture.set_capacity(2);
    fixture.schedule(once(secs(0)));
    fixture.advance(secs(0));
    let failed = Outcome::Failed { reason: Reason::new("status 503"), retry_in: Some(secs(60)) };
    fixture.report(failed);
    fixture.run();
    assert!(view(&mut fixture, LaneQuery::Queues).lanes.is_empty(), "nothing waits");
    let lanes = view(&mut fixture, LaneQuery::All).lanes;
    let last = lanes[0].last_failure.as_ref().unwrap();
    assert_eq!((lanes.len(), lanes[0].failed, last.reason.as_str()), (1, 1, "status 503"));
    assert_eq!(last.retry_at, Some(last.at.after(secs(60))));
    fixture.advance(secs(60));
    let lanes = view(&mut fixture, LaneQuery::All).lanes;
    assert_eq!((lanes.len(), lanes[0].failed, lanes[0].in_flight), (1, 1, 1), "{lanes:?}");
    fixture.report(Outcome::Acked);
    fixture.advance(secs(900));
    assert!(view(&mut fixture, LaneQuery::All).lanes.is_empty(), "it was long ago");
}
