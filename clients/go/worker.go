package punctual

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Worker leases the deliveries of queues, gives them to handlers, and settles them. In a cluster it
// polls every broker. Make one with [Client.Worker], add handlers with [Handle], then [Worker.Run].
type Worker struct {
	client      *Client
	name        string
	concurrency int
	lease       time.Duration
	wait        time.Duration
	stopTimeout time.Duration
	onError     func(error)

	routes map[string][]route
	slots  chan struct{}
	seen   *seenFires

	mu      sync.Mutex
	running map[string]*leased
	acks    map[string]*ackQueue

	handlers sync.WaitGroup
	settling sync.WaitGroup
	// handling is the parent of the contexts of handlers; it outlives the context of Run.
	handling context.Context
	// settleContext is the context of calls that settle; it ends last.
	settleContext context.Context
}

// route is a handler for the keys with a prefix.
type route struct {
	prefix string
	handle func(context.Context, *Delivery) (json.RawMessage, error)
}

// leased is a delivery that a handler has. Redeliveries of the same fire join it: they are settled
// with its outcome.
type leased struct {
	Delivery
	queue    string
	broker   string
	extendAt time.Time
	cancel   context.CancelCauseFunc
	joined   []*leased
}

const (
	concurrencyDefault = 16
	// leaseMax is how many deliveries the broker gives at once.
	leaseMax = 1000
	// leaseDefault is short enough that a worker that dies does not hold deliveries for long.
	leaseDefault = 30 * time.Second
	// waitDefault keeps polls rare and below the usual timeouts of proxies.
	waitDefault = 20 * time.Second
	// stopTimeoutDefault is how long handlers may finish when the worker is stopped.
	stopTimeoutDefault = 30 * time.Second
	// settleTimeout bounds the calls that settle after the last handler has returned.
	settleTimeout = 10 * time.Second
	// topologyEvery is how often the worker looks for brokers that joined or left.
	topologyEvery = 5 * time.Second
	// pollPauseMax bounds the pause after polls that failed.
	pollPauseMax = 2 * time.Second
	// extendEvery is how often leases are looked at; leases last a second at least.
	extendEvery = 200 * time.Millisecond
	// extensionsMax is how many leases are extended at the same time.
	extensionsMax = 16
	// ackBatchMax is how many deliveries are acknowledged in one request; the broker allows 10,000.
	ackBatchMax = 1000
	// ackBytesMax bounds the results in one request of acks.
	ackBytesMax = 4 << 20
	// resultBytesMax is the longest result that the broker keeps.
	resultBytesMax = 16 << 10
	// reasonBytesMax is the longest reason that the broker keeps.
	reasonBytesMax = 512
	// dedupDefault is how many fire ids a worker remembers, about a megabyte.
	dedupDefault = 10_000
)

// A WorkerOption configures a [Worker].
type WorkerOption func(*Worker)

// Concurrency is how many handlers run at the same time; the default is 16. A worker never holds
// more deliveries than that, over all queues and brokers.
func Concurrency(handlers int) WorkerOption {
	return func(w *Worker) { w.concurrency = max(handlers, 1) }
}

// WorkerName is the name that the broker shows; the default is HOST-PROCESS.
func WorkerName(name string) WorkerOption { return func(w *Worker) { w.name = name } }

// LeaseFor is how long a delivery is held; the worker extends it while the handler runs. The
// default is 30 seconds: after so long the deliveries of a worker that died are delivered again.
func LeaseFor(lease time.Duration) WorkerOption { return func(w *Worker) { w.lease = lease } }

// PollWait is how long one poll waits for deliveries; the default is 20 seconds.
func PollWait(wait time.Duration) WorkerOption { return func(w *Worker) { w.wait = wait } }

// StopTimeout is how long handlers may finish after the worker was stopped, before their contexts
// are cancelled; the default is 30 seconds.
func StopTimeout(most time.Duration) WorkerOption { return func(w *Worker) { w.stopTimeout = most } }

// Dedup is how many fire ids of handled deliveries are remembered; the default is 10,000. A fire
// that comes again is acknowledged without a call of the handler. 0 switches it off.
func Dedup(fires int) WorkerOption { return func(w *Worker) { w.seen = newSeenFires(fires) } }

// OnError is called with errors that the worker overcomes by itself: polls and acks that failed,
// and deliveries whose lease was over. It must be safe for concurrent use.
func OnError(report func(error)) WorkerOption { return func(w *Worker) { w.onError = report } }

// Worker makes a worker for queues of the client's namespace.
func (c *Client) Worker(options ...WorkerOption) *Worker {
	host, err := os.Hostname()
	if err != nil {
		host = "go"
	}
	w := &Worker{
		client:      c,
		name:        fmt.Sprintf("%s-%d", host, os.Getpid()),
		concurrency: concurrencyDefault,
		lease:       leaseDefault,
		wait:        waitDefault,
		stopTimeout: stopTimeoutDefault,
		onError:     func(error) {},
		routes:      map[string][]route{},
		seen:        newSeenFires(dedupDefault),
		running:     map[string]*leased{},
		acks:        map[string]*ackQueue{},
	}
	for _, option := range options {
		option(w)
	}
	w.slots = make(chan struct{}, w.concurrency)
	return w
}

// Fire is a delivery with its payload.
type Fire[T any] struct {
	// ID is the same for every attempt of one fire, to deduplicate on.
	ID       string
	Task     string
	Key      string
	Occasion Occasion
	// Attempt is 1 for the first attempt.
	Attempt int
	Version int64
	FireAt  time.Time
	FiredAt time.Time
	Lag     time.Duration
	// CallbackOf is the fire whose end this one reports.
	CallbackOf string
	Payload    T
}

// Handle adds the handler of a queue. The payload is decoded from JSON; []byte and
// [json.RawMessage] get it as it is. An error that the handler returns is a failed attempt, which
// is repeated by the task's policy; [Retry] and [Refuse] make errors that say more.
func Handle[T any](w *Worker, queue string, handler func(context.Context, Fire[T]) error) {
	HandlePrefix(w, queue, "", handler)
}

// HandlePrefix adds a handler for the keys of a queue that begin with the prefix. The handler with
// the longest prefix gets a delivery. If there is none, the attempt fails.
func HandlePrefix[T any](w *Worker, queue, prefix string, handler func(context.Context, Fire[T]) error) {
	addRoute(w, queue, prefix, func(ctx context.Context, fire Fire[T]) (json.RawMessage, error) {
		return nil, handler(ctx, fire)
	})
}

// HandleResult adds a handler whose value is the result of the fire, which the history keeps: JSON
// of at most 16 KiB.
func HandleResult[T, R any](w *Worker, queue string, handler func(context.Context, Fire[T]) (R, error)) {
	HandleResultPrefix(w, queue, "", handler)
}

// HandleResultPrefix is [HandleResult] for the keys of a queue that begin with the prefix, as
// [HandlePrefix] is for [Handle].
func HandleResultPrefix[T, R any](w *Worker, queue, prefix string, handler func(context.Context, Fire[T]) (R, error)) {
	addRoute(w, queue, prefix, func(ctx context.Context, fire Fire[T]) (json.RawMessage, error) {
		value, err := handler(ctx, fire)
		if err != nil {
			return nil, err
		}
		result, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("result of the handler: %w", err)
		}
		if len(result) > resultBytesMax {
			return nil, fmt.Errorf("result of the handler has %d bytes; at most %d are allowed", len(result), resultBytesMax)
		}
		return result, nil
	})
}

func addRoute[T any](w *Worker, queue, prefix string, handler func(context.Context, Fire[T]) (json.RawMessage, error)) {
	handle := func(ctx context.Context, delivery *Delivery) (json.RawMessage, error) {
		fire, err := NewFire[T](delivery)
		if err != nil {
			return nil, err
		}
		return handler(ctx, fire)
	}
	routes := append(w.routes[queue], route{prefix, handle})
	slices.SortStableFunc(routes, func(a, b route) int { return cmp.Compare(len(b.prefix), len(a.prefix)) })
	w.routes[queue] = routes
}

// NewFire decodes the payload of a delivery.
func NewFire[T any](delivery *Delivery) (Fire[T], error) {
	fire := Fire[T]{
		ID: delivery.FireID, Task: delivery.Task, Key: delivery.Key, Occasion: delivery.Occasion,
		Attempt: delivery.Attempt, Version: delivery.Version, FireAt: delivery.FireAt,
		FiredAt: delivery.FiredAt, Lag: time.Duration(delivery.LagMS) * time.Millisecond,
		CallbackOf: delivery.CallbackOf,
	}
	body := []byte(delivery.Payload)
	if delivery.PayloadBase64 != nil {
		body = delivery.PayloadBase64
	}
	switch payload := any(&fire.Payload).(type) {
	case *[]byte:
		*payload = body
	case *json.RawMessage:
		*payload = body
	default:
		if len(body) == 0 {
			return fire, nil
		}
		if err := json.Unmarshal(body, payload); err != nil {
			return fire, fmt.Errorf("payload: %w", err)
		}
	}
	return fire, nil
}

// OwnBackoff as the pause of [Retry] and [Client.Fail] is the pause that the task's policy gives.
const OwnBackoff time.Duration = -1

// RetryError is the error that [Retry] makes.
type RetryError struct {
	After  time.Duration
	Reason string
}

// Error is the reason.
func (e *RetryError) Error() string { return cmp.Or(e.Reason, "retry") }

// Retry is the error of a handler that wants the fire again after a pause. It counts as a failed
// attempt. The optional reason is shown in the history.
func Retry(after time.Duration, reason ...string) error {
	return &RetryError{After: after, Reason: strings.Join(reason, "; ")}
}

// RefuseError is the error that [Refuse] makes.
type RefuseError struct{ Reason string }

// Error is the reason.
func (e *RefuseError) Error() string { return e.Reason }

// Refuse is the error of a handler for a fire that no further attempt would help: it becomes a
// dead letter with the reason.
func Refuse(reason string) error { return &RefuseError{reason} }

// Run works until the context ends. Then it leases nothing more, lets the handlers finish, settles
// their deliveries, and returns nil. It returns an error if the broker refuses the worker: a wrong
// token, a right that is missing, a name that is not allowed. A worker runs once.
func (w *Worker) Run(ctx context.Context) error {
	if len(w.routes) == 0 {
		return errors.New("punctual: the worker has no handlers")
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	settleContext, endSettling := context.WithCancel(context.WithoutCancel(ctx))
	defer endSettling()
	handling, cancelHandlers := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancelHandlers(nil)
	w.handling, w.settleContext = handling, settleContext
	for queue := range w.routes {
		w.acks[queue] = newAckQueue(w, queue)
	}
	extending, endExtending := context.WithCancel(settleContext)
	defer endExtending()
	go w.extendLeases(extending)

	w.pollBrokers(ctx, stop)

	// The polls have ended. Handlers finish, or are cancelled.
	overdue := time.AfterFunc(w.stopTimeout, func() { cancelHandlers(context.Cause(ctx)) })
	w.handlers.Wait()
	overdue.Stop()
	bound := time.AfterFunc(settleTimeout, endSettling)
	w.settling.Wait()
	bound.Stop()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// pollBrokers has one poll loop for each queue and each broker of the topology until the context
// ends.
func (w *Worker) pollBrokers(ctx context.Context, stop context.CancelCauseFunc) {
	polls := map[string]context.CancelFunc{}
	var loops sync.WaitGroup
	defer loops.Wait()
	for {
		brokers := w.brokers(ctx)
		for broker, cancel := range polls {
			if !slices.Contains(brokers, broker) {
				cancel()
				delete(polls, broker)
			}
		}
		for _, broker := range brokers {
			if polls[broker] != nil {
				continue
			}
			polling, cancel := context.WithCancel(ctx)
			polls[broker] = cancel
			for queue := range w.routes {
				loops.Add(1)
				go func() {
					defer loops.Done()
					w.poll(polling, stop, broker, queue)
				}()
			}
		}
		select {
		case <-ctx.Done():
			for _, cancel := range polls {
				cancel()
			}
			return
		case <-time.After(topologyEvery):
		}
	}
}

// brokers returns the brokers to poll. A single broker is polled by the URLs of the client, and so
// is a cluster whose topology is not known: the empty name means any of them.
func (w *Worker) brokers(ctx context.Context) []string {
	core := w.client.core
	if !core.discover {
		return slices.Clone(core.configured)
	}
	asking, cancel := context.WithTimeout(ctx, topologyEvery)
	defer cancel()
	topology, err := w.client.Topology(asking)
	core.mu.Lock()
	core.learned = time.Now()
	core.mu.Unlock()
	if err != nil || len(topology.Brokers) < 2 {
		return []string{""}
	}
	brokers := make([]string, len(topology.Brokers))
	for i, broker := range topology.Brokers {
		brokers[i] = core.scheme + "://" + broker.Address
	}
	return brokers
}

// poll leases deliveries of a queue from a broker and starts their handlers, until the context
// ends. It asks for one delivery while there are none, and for more as long as it gets all that it
// asked for, so that idle queues do not reserve what busy ones could use.
func (w *Worker) poll(ctx context.Context, stop context.CancelCauseFunc, broker, queue string) {
	want := 1
	pause := pauseFirst
	for ctx.Err() == nil {
		slots := w.reserve(ctx, want)
		if slots == 0 {
			return
		}
		got, err := w.leaseOnce(ctx, broker, queue, slots)
		for range slots - min(len(got), slots) {
			<-w.slots
		}
		if err != nil {
			if refused(err) {
				stop(err)
				return
			}
			if ctx.Err() == nil {
				w.onError(fmt.Errorf("queue %s: %w", queue, err))
				sleep(ctx, pause)
				pause = min(2*pause, pollPauseMax)
			}
			continue
		}
		pause = pauseFirst
		if len(got) == slots {
			want = min(4*slots, w.concurrency, leaseMax)
		} else {
			want = max(len(got), 1)
		}
		for i := range got {
			w.start(broker, queue, &got[i])
		}
	}
}

// reserve takes at least one slot for a handler, waiting for it, and up to want if they are free.
func (w *Worker) reserve(ctx context.Context, want int) int {
	select {
	case <-ctx.Done():
		return 0
	case w.slots <- struct{}{}:
	}
	for slots := 1; ; slots++ {
		if slots == want {
			return slots
		}
		select {
		case w.slots <- struct{}{}:
		default:
			return slots
		}
	}
}

func (w *Worker) leaseOnce(ctx context.Context, broker, queue string, slots int) ([]Delivery, error) {
	what := LeaseRequest{Max: slots, Wait: w.pollWait(), Lease: w.lease, Worker: w.name}
	request, err := w.client.leaseCall(queue, what)
	if err != nil {
		return nil, err
	}
	request.broker = broker
	got, err := decode[deliveries](ctx, w.client, request)
	if err != nil {
		return nil, err
	}
	return got.Deliveries, nil
}

// pollWait is shorter if polls have to take turns because there are fewer handlers than loops.
func (w *Worker) pollWait() time.Duration {
	const turn = 500 * time.Millisecond
	if len(w.slots) == cap(w.slots) && cap(w.slots) < len(w.routes)*max(w.client.core.count(""), 1) {
		return min(w.wait, turn)
	}
	return w.wait
}

// refused reports whether the broker will answer the same to every repetition.
func refused(err error) bool {
	var problem *Problem
	if !errors.As(err, &problem) {
		return false
	}
	switch problem.Status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden,
		http.StatusNotFound, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// start gives a delivery to its handler in a goroutine of its own, which has one slot.
func (w *Worker) start(broker, queue string, delivery *Delivery) {
	entry := &leased{Delivery: *delivery, queue: queue, broker: broker}
	entry.extendAt = time.Now().Add(entry.Lease.Std() / 3)
	w.mu.Lock()
	if running := w.running[entry.FireID]; running != nil {
		running.joined = append(running.joined, entry)
		w.mu.Unlock()
		<-w.slots
		return
	}
	if w.seen.has(entry.FireID) {
		w.mu.Unlock()
		<-w.slots
		w.acks[queue].add(entry, nil)
		return
	}
	ctx, cancel := context.WithCancelCause(w.handling)
	entry.cancel = cancel
	w.running[entry.FireID] = entry
	w.mu.Unlock()
	w.handlers.Add(1)
	go func() {
		defer w.handlers.Done()
		defer func() { <-w.slots }()
		result, err := w.handle(ctx, entry)
		cancel(nil)
		w.mu.Lock()
		delete(w.running, entry.FireID)
		if err == nil {
			w.seen.add(entry.FireID)
		}
		entries := append([]*leased{entry}, entry.joined...)
		w.mu.Unlock()
		for _, entry := range entries {
			w.settle(entry, result, err)
		}
	}()
}

// handle calls the handler of the key. A panic is a failed attempt.
func (w *Worker) handle(ctx context.Context, entry *leased) (result json.RawMessage, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
			w.onError(fmt.Errorf("queue %s, key %q: handler panicked: %v", entry.queue, entry.Key, panicked))
		}
	}()
	for _, route := range w.routes[entry.queue] {
		if strings.HasPrefix(entry.Key, route.prefix) {
			return route.handle(ctx, &entry.Delivery)
		}
	}
	return nil, fmt.Errorf("the worker has no handler for key %q of queue %q", entry.Key, entry.queue)
}

// settle reports the outcome of a handler.
func (w *Worker) settle(entry *leased, result json.RawMessage, err error) {
	if err == nil {
		w.acks[entry.queue].add(entry, result)
		return
	}
	w.settling.Add(1)
	go func() {
		defer w.settling.Done()
		var refuse *RefuseError
		var retry *RetryError
		verb := "fail"
		var body any
		switch {
		case errors.As(err, &refuse):
			verb, body = "refuse", refuseBody{Token: entry.Token, Reason: shorten(refuse.Reason)}
		case errors.As(err, &retry):
			fail := failBody{Token: entry.Token, Reason: shorten(err.Error())}
			if retry.After >= 0 {
				fail.RetryIn = durationOf(retry.After)
			}
			body = fail
		default:
			body = failBody{Token: entry.Token, Reason: shorten(err.Error())}
		}
		if _, failed := w.client.settle(w.settleContext, entry.queue, verb, entry.broker, body); failed != nil {
			w.onError(fmt.Errorf("queue %s, key %q: %s: %w", entry.queue, entry.Key, verb, failed))
		}
	}()
}

// shorten cuts a reason to what the broker keeps, at the border of a character.
func shorten(reason string) string {
	if len(reason) <= reasonBytesMax {
		return reason
	}
	return strings.ToValidUTF8(reason[:reasonBytesMax], "")
}

// extendLeases extends the leases of running handlers when a third of them has passed. A handler
// whose lease is over gets its context cancelled with [ErrLeaseLost].
func (w *Worker) extendLeases(ctx context.Context) {
	ticker := time.NewTicker(extendEvery)
	defer ticker.Stop()
	limit := make(chan struct{}, extensionsMax)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		var due []*leased
		w.mu.Lock()
		for _, entry := range w.running {
			if entry.Lease > 0 && now.After(entry.extendAt) {
				entry.extendAt = now.Add(entry.Lease.Std() / 3)
				due = append(due, entry)
			}
		}
		w.mu.Unlock()
		for _, entry := range due {
			limit <- struct{}{}
			go func() {
				defer func() { <-limit }()
				w.extend(ctx, entry)
			}()
		}
	}
}

func (w *Worker) extend(ctx context.Context, entry *leased) {
	ctx, cancel := context.WithTimeout(ctx, entry.Lease.Std())
	defer cancel()
	// A fire that was delivered to this worker again is held by the token of the latest delivery.
	token := entry.Token
	w.mu.Lock()
	if joined := len(entry.joined); joined > 0 {
		token = entry.joined[joined-1].Token
	}
	w.mu.Unlock()
	body := extendBody{Token: token, Lease: max(entry.Lease, Duration(time.Second))}
	result, err := w.client.settle(ctx, entry.queue, "extend", entry.broker, body)
	if err != nil {
		if ctx.Err() == nil {
			w.onError(fmt.Errorf("queue %s, key %q: extend: %w", entry.queue, entry.Key, err))
		}
		return
	}
	if result != ResultStale {
		return
	}
	w.mu.Lock()
	running := w.running[entry.FireID] == entry
	rejoined := len(entry.joined) > 0 && entry.joined[len(entry.joined)-1].Token != token
	w.mu.Unlock()
	if running && !rejoined {
		entry.cancel(ErrLeaseLost)
		w.onError(fmt.Errorf("queue %s, key %q: %w", entry.queue, entry.Key, ErrLeaseLost))
	}
}

func sleep(ctx context.Context, pause time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// ackQueue acknowledges the deliveries of one queue in batches: what comes while a request is in
// flight goes with the next one.
type ackQueue struct {
	worker *Worker
	queue  string

	mu      sync.Mutex
	pending []pendingAck
	sending int
}

type pendingAck struct {
	entry  *leased
	result json.RawMessage
}

// ackRequestsMax is how many requests of one queue are in flight: one is on its way while the
// broker works on the other.
const ackRequestsMax = 2

func newAckQueue(w *Worker, queue string) *ackQueue { return &ackQueue{worker: w, queue: queue} }

func (q *ackQueue) add(entry *leased, result json.RawMessage) {
	q.worker.settling.Add(1)
	q.mu.Lock()
	q.pending = append(q.pending, pendingAck{entry, result})
	start := q.sending < ackRequestsMax
	if start {
		q.sending++
	}
	q.mu.Unlock()
	if start {
		go q.send()
	}
}

// send sends batches until nothing is pending.
func (q *ackQueue) send() {
	for {
		q.mu.Lock()
		if len(q.pending) == 0 {
			q.sending--
			q.mu.Unlock()
			return
		}
		size, bytes := 0, 0
		for size < min(len(q.pending), ackBatchMax) && bytes < ackBytesMax {
			bytes += len(q.pending[size].result)
			size++
		}
		batch := q.pending[:size:size]
		q.pending = q.pending[size:]
		q.mu.Unlock()
		q.sendBatch(batch)
	}
}

func (q *ackQueue) sendBatch(batch []pendingAck) {
	defer q.worker.settling.Add(-len(batch))
	var body ackBody
	for _, ack := range batch {
		if ack.result == nil {
			body.Tokens = append(body.Tokens, ack.entry.Token)
		} else {
			body.Acks = append(body.Acks, AckEntry{ack.entry.Token, ack.result})
		}
	}
	w := q.worker
	results, err := w.client.ack(w.settleContext, q.queue, batch[0].entry.broker, body)
	if err != nil {
		w.onError(fmt.Errorf("queue %s: ack of %d deliveries: %w", q.queue, len(batch), err))
		return
	}
	for _, result := range results {
		if result.Result == ResultAcked {
			continue
		}
		err := fmt.Errorf("queue %s: ack answered %s", q.queue, result.Result)
		if result.Problem != nil {
			err = fmt.Errorf("%w: %w", err, result.Problem)
		}
		w.onError(err)
	}
}

// seenFires remembers the latest fire ids that were handled. The caller locks.
type seenFires struct {
	ids  map[string]struct{}
	ring []string
	next int
}

func newSeenFires(most int) *seenFires {
	return &seenFires{ids: map[string]struct{}{}, ring: make([]string, max(most, 0))}
}

func (s *seenFires) has(id string) bool {
	_, ok := s.ids[id]
	return ok
}

func (s *seenFires) add(id string) {
	if len(s.ring) == 0 || s.has(id) {
		return
	}
	delete(s.ids, s.ring[s.next])
	s.ring[s.next] = id
	s.ids[id] = struct{}{}
	s.next = (s.next + 1) % len(s.ring)
}
