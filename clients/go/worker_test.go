package punctual

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// runWorker runs a worker until stop is called; stop fails the test if Run fails.
func runWorker(t *testing.T, w *Worker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("the worker did not stop within 30 seconds")
		}
	})
	t.Cleanup(stop)
	return stop
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestAWorkerKeepsALeaseWhileItsHandlerRunsAndShowsItsName(t *testing.T) {
	ctx := testContext(t)
	client := newClient(t, startServe(t).url, Namespace("shop"))
	var calls atomic.Int32
	release := make(chan struct{})
	w := client.Worker(WorkerName("mill"), LeaseFor(time.Second))
	HandleResult(w, "slow", func(ctx context.Context, f Fire[map[string]int]) (int, error) {
		calls.Add(1)
		select {
		case <-release:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		return f.Payload["order"], nil
	})
	stop := runWorker(t, w)
	if _, err := client.Schedule(ctx, "order-9", In(0), ToQueue("slow"), JSON(map[string]int{"order": 9})); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() (int32, bool) { n := calls.Load(); return n, n == 1 })
	workers := eventually(t, func() ([]WorkerInfo, bool) {
		workers, err := client.Workers(ctx)
		return workers, err == nil && len(workers) > 0
	})
	if workers[0].Name != "mill" {
		t.Errorf("the broker shows the workers %+v", workers)
	}
	// Three leases long; without extension the fire would be delivered again.
	time.Sleep(3 * time.Second)
	close(release)
	stop()
	fires, err := client.History(ctx, "order-9")
	if err != nil {
		t.Fatal(err)
	}
	if calls.Load() != 1 || len(fires) != 1 || len(fires[0].Attempts) != 1 || string(fires[0].Result) != "9" {
		t.Errorf("%d calls; history: %+v", calls.Load(), fires)
	}
}

func TestAWorkerRoutesByPrefixAndSettlesByTheErrorOfItsHandler(t *testing.T) {
	ctx := testContext(t)
	client := newClient(t, startServe(t).url, Namespace("shop"))
	var tries sync.Map
	w := client.Worker(Concurrency(4))
	Handle(w, "mixed", func(_ context.Context, f Fire[any]) error {
		if f.Attempt == 1 {
			return Retry(0, "not yet")
		}
		tries.Store(f.Key, f.Attempt)
		return nil
	})
	HandlePrefix(w, "mixed", "bad-", func(context.Context, Fire[any]) error { return Refuse("no such order") })
	HandlePrefix(w, "mixed", "bad-panic", func(context.Context, Fire[any]) error { panic("oops") })
	stop := runWorker(t, w)
	for _, key := range []string{"good", "bad-order", "bad-panic"} {
		if _, err := client.Schedule(ctx, key, In(0), ToQueue("mixed"), Attempts(2), FixedBackoff(0)); err != nil {
			t.Fatal(err)
		}
	}
	reasons := eventually(t, func() (map[string]string, bool) {
		reasons := map[string]string{}
		for letter, err := range client.Dead(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			last := letter.Attempts[len(letter.Attempts)-1]
			reasons[letter.Task.Key] = letter.Reason + ": " + last.Reason
		}
		_, good := tries.Load("good")
		return reasons, len(reasons) == 2 && good
	})
	stop()
	if reasons["bad-order"] != "refused: no such order" || reasons["bad-panic"] != "exhausted: panic: oops" {
		t.Errorf("dead letters: %v", reasons)
	}
	if attempt, _ := tries.Load("good"); attempt != 2 {
		t.Errorf("the retried fire was handled in attempt %v", attempt)
	}
}

func TestAFireThatWasHandledIsAcknowledgedWithoutASecondCall(t *testing.T) {
	ctx := testContext(t)
	client := newClient(t, startServe(t).url, Namespace("shop"))
	var calls atomic.Int32
	w := client.Worker()
	Handle(w, "once", func(context.Context, Fire[any]) error { calls.Add(1); return nil })
	if _, err := client.Schedule(ctx, "order-1", In(0), ToQueue("once"), Guaranteed(ExactlyOnce)); err != nil {
		t.Fatal(err)
	}
	// Another worker takes the fire and vanishes; this one has handled it already.
	got, err := client.Lease(ctx, "once", LeaseRequest{Wait: 10 * time.Second, Lease: time.Second})
	if err != nil || len(got) != 1 {
		t.Fatalf("leased %v, %v", got, err)
	}
	w.seen.add(got[0].FireID)
	stop := runWorker(t, w)
	eventually(t, func() (State, bool) {
		task, err := client.Get(ctx, "order-1")
		if err != nil {
			t.Fatal(err)
		}
		return task.State, task.State == StateDone
	})
	stop()
	if calls.Load() != 0 {
		t.Errorf("the handler was called %d times", calls.Load())
	}
}

func TestAWorkerThatIsStoppedFinishesWhatIsInFlightAndLeasesNothingMore(t *testing.T) {
	ctx := testContext(t)
	client := newClient(t, startServe(t).url, Namespace("shop"))
	var calls, most, now atomic.Int32
	entered, release := make(chan struct{}, 10), make(chan struct{})
	w := client.Worker(Concurrency(2))
	Handle(w, "slow", func(ctx context.Context, _ Fire[any]) error {
		calls.Add(1)
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		entered <- struct{}{}
		<-release
		return ctx.Err()
	})
	for i := range 5 {
		if _, err := client.Schedule(ctx, fmt.Sprintf("order-%d", i), In(0), ToQueue("slow")); err != nil {
			t.Fatal(err)
		}
	}
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	<-entered
	<-entered
	cancel()
	close(release)
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	if calls.Load() != 2 || most.Load() != 2 {
		t.Errorf("%d calls, %d at the same time", calls.Load(), most.Load())
	}
	eventually(t, func() (int64, bool) {
		stats, err := client.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return stats.Done, stats.Done == 2
	})
}

func TestAHandlerWhoseLeaseIsLostHasItsContextCancelled(t *testing.T) {
	ctx := testContext(t)
	client := newClient(t, startServe(t).url, Namespace("shop"))
	entered, cause := make(chan struct{}), make(chan error, 1)
	w := client.Worker(LeaseFor(time.Second))
	Handle(w, "slow", func(ctx context.Context, _ Fire[any]) error {
		close(entered)
		select {
		case <-ctx.Done():
			cause <- context.Cause(ctx)
		case <-time.After(20 * time.Second):
			cause <- errors.New("the context was not cancelled")
		}
		return nil
	})
	stop := runWorker(t, w)
	if _, err := client.Schedule(ctx, "order-1", In(0), ToQueue("slow")); err != nil {
		t.Fatal(err)
	}
	<-entered
	// Another caller ends the attempt, so that the next extension is stale.
	w.mu.Lock()
	var token string
	for _, entry := range w.running {
		token = entry.Token
	}
	w.mu.Unlock()
	if _, err := client.Ack(ctx, "slow", token); err != nil {
		t.Fatal(err)
	}
	if err := <-cause; !errors.Is(err, ErrLeaseLost) {
		t.Errorf("the cause is %v", err)
	}
	stop()
}

func TestAWorkerThatMayNotConsumeEndsWithTheProblem(t *testing.T) {
	client := newClient(t, startServe(t, "--token", "shop=secret").url, Namespace("shop"), Token("wrong"))
	w := client.Worker()
	Handle(w, "q", func(context.Context, Fire[any]) error { return nil })
	if err := w.Run(testContext(t)); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("Run: %v", err)
	}
}

func TestSeenFiresForgetTheOldest(t *testing.T) {
	seen := newSeenFires(2)
	for _, id := range []string{"a", "b", "b", "c"} {
		seen.add(id)
	}
	if seen.has("a") || !seen.has("b") || !seen.has("c") || len(seen.ids) != 2 {
		t.Errorf("remembered %v", seen.ids)
	}
}

func TestTouchesOfAKeyAreOneAndCloseSendsThem(t *testing.T) {
	ctx := testContext(t)
	client := newClient(t, startServe(t).url, Namespace("home"))
	var requests, keys atomic.Int32
	buffer := client.TouchBuffer(FlushEvery(time.Hour), FlushAt(100), TouchWith(Create(Within(time.Hour), ToQueue("silent"))),
		OnTouched(func(r *TouchManyResult) { requests.Add(1); keys.Add(int32(r.Touched + r.Created)) }))
	for i := range 5000 {
		if err := buffer.Touch(ctx, "lamp-"+strconv.Itoa(i%50)); err != nil {
			t.Fatal(err)
		}
	}
	if requests.Load() != 0 {
		t.Error("the buffer sent before it was full")
	}
	if err := buffer.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if requests.Load() != 1 || keys.Load() != 50 {
		t.Errorf("%d requests with %d keys", requests.Load(), keys.Load())
	}
	if err := buffer.Touch(ctx, "lamp"); !errors.Is(err, ErrClosed) {
		t.Errorf("touch after close: %v", err)
	}
}

// polledHosts notes which brokers are asked for deliveries. The list of workers does not show it: it
// had all three brokers when only one was polled.
type polledHosts struct {
	mu    sync.Mutex
	hosts map[string]bool
}

func (p *polledHosts) RoundTrip(request *http.Request) (*http.Response, error) {
	if strings.HasSuffix(request.URL.Path, "/lease") {
		p.mu.Lock()
		p.hosts[request.URL.Host] = true
		p.mu.Unlock()
	}
	return http.DefaultTransport.RoundTrip(request)
}

func (p *polledHosts) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.hosts)
}

// TestWorkersAndCallsOutliveTheLeader kills the leader of three brokers while a worker works: every
// task is handled, more than once only under the same fire id, and calls are answered by another
// broker that the client has learned.
func TestWorkersAndCallsOutliveTheLeader(t *testing.T) {
	redis, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal("redis-server is not installed")
	}
	ctx := testContext(t)
	redisPort := strconv.Itoa(freePort(t))
	run(t, redis, "--port", redisPort, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	eventually(t, func() (error, bool) {
		connection, err := net.Dial("tcp", "127.0.0.1:"+redisPort)
		if err == nil {
			connection.Close()
		}
		return err, err == nil
	})
	brokers := map[string]*process{}
	for range 3 {
		listen := "127.0.0.1:" + strconv.Itoa(freePort(t))
		broker := run(t, binary(t), "serve", "--redis", "redis://127.0.0.1:"+redisPort, "--cluster", "t", "--listen", listen, "--lease", "2s")
		broker.url = "http://" + listen
		brokers[listen] = broker
	}
	for _, broker := range brokers {
		broker.awaitReady(t)
	}
	var first *process
	for _, broker := range brokers {
		first = broker
	}
	watch := newClient(t, first.url, NoDiscovery())
	topology := eventually(t, func() (*Topology, bool) {
		topology, err := watch.Topology(ctx)
		if err != nil || len(topology.Brokers) != 3 || topology.Leader == "" {
			return topology, false
		}
		// The leader must own some of the tasks.
		for _, broker := range topology.Brokers {
			if len(broker.Partitions) == 0 {
				return topology, false
			}
		}
		return topology, true
	})
	leader := brokers[topology.Leader]

	// The client knows the leader only, and learns the others from it.
	polled := &polledHosts{hosts: map[string]bool{}}
	client := newClient(t, leader.url, Namespace("shop"), Retries(100, 30*time.Second), HTTPClient(&http.Client{Transport: polled}))
	const tasks = 2000
	var handled sync.Map
	var count atomic.Int32
	half := make(chan struct{})
	w := client.Worker(Concurrency(32), WorkerName("survivor"), LeaseFor(2*time.Second))
	Handle(w, "load", func(_ context.Context, f Fire[int]) error {
		first, again := handled.LoadOrStore(f.Key, f.ID)
		if again && first != f.ID {
			t.Errorf("task %s was handled under the fire ids %v and %s", f.Key, first, f.ID)
		}
		if !again && count.Add(1) == tasks/2 {
			close(half)
		}
		return nil
	})
	stop := runWorker(t, w)
	eventually(t, func() (int, bool) { n := polled.count(); return n, n == 3 })
	batch := make([]TaskFields, tasks)
	for i := range batch {
		batch[i] = NewTask(fmt.Sprintf("order-%d", i), In(time.Duration(i)*time.Millisecond), ToQueue("load"), JSON(i), Attempts(20))
	}
	results, err := client.ScheduleMany(ctx, batch)
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range results {
		if result.Err() != nil {
			t.Fatal(result.Err())
		}
	}
	select {
	case <-half:
	case <-ctx.Done():
		t.Fatalf("only %d tasks were handled", count.Load())
	}
	leader.kill()
	if count.Load() >= tasks {
		t.Fatal("the leader was killed after the last fire")
	}
	if _, err := client.Schedule(ctx, "after", In(0), ToQueue("load"), JSON(0)); err != nil {
		t.Errorf("a call after the leader was killed: %v", err)
	}
	deadline := time.Now().Add(60 * time.Second)
	for count.Load() < tasks+1 && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	if count.Load() != tasks+1 {
		t.Errorf("%d of %d tasks were handled", count.Load(), tasks+1)
	}
}

func TestOnlyWhatIsSafeIsRepeated(t *testing.T) {
	answer := func(status int, kind string) string {
		return fmt.Sprintf(`{"type":"urn:punctual:%s","title":"t","status":%d,"detail":"d"}`, kind, status)
	}
	ctx := testContext(t)
	cancelCall := func(c *Client) error { _, err := c.Cancel(ctx, "a"); return err }
	fireCall := func(c *Client) error { _, err := c.Fire(ctx, "a"); return err }
	ifMatch := func(c *Client) error { _, err := c.Schedule(ctx, "a", In(0), ToQueue("q"), IfMatch(1)); return err }
	for _, test := range []struct {
		name     string
		status   int
		kind     string
		call     func(*Client) error
		requests int32
		err      error
	}{
		{"nothing was done", 503, "busy", fireCall, 2, nil},
		{"no owner", 503, "no-owner", ifMatch, 2, nil},
		{"throttled", 429, "share-used-up", fireCall, 2, nil},
		{"lost, idempotent", 503, "lost", cancelCall, 2, nil},
		{"lost, a fire would be a second one", 503, "lost", fireCall, 1, ErrLost},
		{"lost, the version would differ", 503, "lost", ifMatch, 1, ErrLost},
		{"a conflict", 409, "firing", cancelCall, 1, ErrFiring},
		{"a bad field", 422, "invalid-field", ifMatch, 1, ErrInvalidField},
	} {
		t.Run(test.name, func(t *testing.T) {
			var requests atomic.Int32
			// A real broker cannot be made to answer each of these, so this server does it instead.
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if requests.Add(1) > 1 {
					_, _ = w.Write([]byte(`{"result":"cancelled"}`))
					return
				}
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(test.status)
				_, _ = w.Write([]byte(answer(test.status, test.kind)))
			})}
			go func() { _ = server.Serve(listener) }()
			defer server.Close()
			err = test.call(newClient(t, "http://"+listener.Addr().String(), NoDiscovery()))
			if !errors.Is(err, test.err) || requests.Load() != test.requests {
				t.Errorf("%d requests, error %v", requests.Load(), err)
			}
		})
	}
}

func TestTheNextBrokerIsAskedAtOnce(t *testing.T) {
	broker := startServe(t)
	dead := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	// No time for a pause: only a repetition without one can succeed.
	client := newClient(t, dead+","+broker.url, Namespace("shop"), NoDiscovery(), Retries(2, 0))
	if _, err := client.Fire(testContext(t), "nothing"); !errors.Is(err, ErrTaskNotFound) {
		t.Errorf("the second broker was not asked: %v", err)
	}
}

func TestDurationsAreWrittenAsTheBrokerWritesThem(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0s": 0, "500ms": 500 * time.Millisecond, "1h30m": 90 * time.Minute, "1d12h1m30s500ms": 36*time.Hour + 90500*time.Millisecond,
		"36500d": 36500 * 24 * time.Hour,
	} {
		got, err := ParseDuration(text)
		if err != nil || got != want || Duration(want).String() != text {
			t.Errorf("%q is read as %v (%v) and written as %q", text, got, err, Duration(want))
		}
	}
	for text, want := range map[string]time.Duration{"PT15M": 15 * time.Minute, "P1DT2H0.5S": 26*time.Hour + 500*time.Millisecond, "2w": 14 * 24 * time.Hour} {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("%q is read as %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "soon", "5", "1m1h", "1h1h", "P", "PT", "-1s", "P1Y", "99999999999d"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}
