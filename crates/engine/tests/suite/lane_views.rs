//! Views of lanes: what an owner says about tasks that wait.

use crate::fixture::{OwnerFixture, keyed, once, secs, shop};
use punctual_core::{HttpTarget, Method, NewTask, Queue, Target};
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
    let Target::Queue(name) = &queue else { panic!("the fixture uses a queue") };
    let lane = LaneView {
        starved_since: None,
        queue: Some(name.clone()),
        waiting: 3,
        unsent: 0,
        in_flight: 2,
        capacity: 2,
        spilled_since: None,
        oldest_overdue: Some(due),
    };
    assert_eq!(view(&mut fixture, LaneQuery::Queues).lanes, std::slice::from_ref(&lane));
    assert_eq!(view(&mut fixture, LaneQuery::Lane(LaneTarget::of(&queue))).lanes, [lane]);
    let other = HttpTarget::new("http://127.0.0.1:9/b", Method::Post, vec![]).unwrap();
    let lane = LaneTarget::of(&Target::Http(other));
    let webhook = view(&mut fixture, LaneQuery::Lane(lane)).lanes;
    assert_eq!((webhook.len(), webhook[0].in_flight, &webhook[0].queue), (1, 1, &None));
    let unused = LaneQuery::Lane(LaneTarget::Queue(Queue::new("unused").unwrap()));
    assert!(view(&mut fixture, unused).lanes.is_empty());
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
