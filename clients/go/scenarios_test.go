package punctual_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	punctual "punctual.dev/go"
	"punctual.dev/go/punctualtest"
	"punctual.dev/go/webhook"
)

// scenario is one file of clients/scenarios; its README has the meaning of each key.
type scenario struct {
	Name   string                       `json:"name"`
	Broker string                       `json:"broker"`
	Clock  string                       `json:"clock"`
	Args   []string                     `json:"args"`
	Token  string                       `json:"token"`
	Steps  []map[string]json.RawMessage `json:"steps"`
}

type object = map[string]any

// player runs the steps of one scenario through the public methods of the package.
type player struct {
	t        *testing.T
	client   *punctual.Client
	bound    object
	receiver *receiver
	restart  func()
	// killLeader kills the leader of a cluster.
	killLeader func()
}

func TestScenarios(t *testing.T) {
	directory := os.Getenv("PUNCTUAL_SCENARIOS")
	if directory == "" {
		directory = "../scenarios"
	}
	files, err := filepath.Glob(filepath.Join(directory, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("there are no scenarios in %s", directory)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			t.Parallel()
			play(t, file)
		})
	}
}

func play(t *testing.T, path string) {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file scenario
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	if len(file.Steps) == 0 {
		t.Fatal("the scenario has no steps")
	}
	p := &player{t: t, bound: object{}}
	options := []punctual.Option{punctual.Token(file.Token)}
	switch file.Broker {
	case "", "dev":
		start := "2027-01-04T08:00:00Z"
		if file.Clock != "" {
			start = file.Clock
		}
		at, err := time.Parse(time.RFC3339, start)
		if err != nil {
			t.Fatal(err)
		}
		p.client = punctualtest.Start(t, punctualtest.Clock(at), punctualtest.Namespace("shop"),
			punctualtest.Args(file.Args...), punctualtest.ClientOptions(options...)).Client
	case "serve":
		p.serve(file.Args, options)
	case "cluster":
		p.cluster(options)
	default:
		t.Fatalf("unknown broker %q", file.Broker)
	}
	for i, step := range file.Steps {
		if !p.step(i+1, step) {
			return
		}
	}
}

// serve starts a broker in real time and says how to restart it.
func (p *player) serve(args []string, options []punctual.Option) {
	address := freeAddress(p.t)
	args = append([]string{"serve", "--listen", address, "--data-dir", p.t.TempDir()}, args...)
	var err error
	p.client, err = punctual.New("http://"+address, append(options, punctual.Namespace("shop"))...)
	if err != nil {
		p.t.Fatal(err)
	}
	var running *exec.Cmd
	start := func() {
		running = exec.Command(punctualtest.Binary(p.t), args...)
		if err := running.Start(); err != nil {
			p.t.Fatal(err)
		}
		deadline := time.Now().Add(30 * time.Second)
		for {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err := p.client.Ready(ctx)
			cancel()
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				p.t.Fatalf("the broker is not ready: %v", err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	kill := func() {
		_ = running.Process.Kill()
		_ = running.Wait()
	}
	p.restart = func() { kill(); start() }
	p.t.Cleanup(func() { kill() })
	start()
}

// cluster starts three brokers on a Redis and says how to kill the leader. The client is given the
// addresses of all, that of the leader first.
func (p *player) cluster(options []punctual.Option) {
	server := func(name string, args ...string) *exec.Cmd {
		command := exec.Command(name, args...)
		if err := command.Start(); err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() {
			_ = command.Process.Kill()
			_ = command.Wait()
		})
		return command
	}
	redis := freeAddress(p.t)
	_, port, _ := net.SplitHostPort(redis)
	server("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", p.t.TempDir())
	p.until("Redis listens", func() error {
		connection, err := net.Dial("tcp", redis)
		if err == nil {
			connection.Close()
		}
		return err
	})
	brokers, addresses := map[string]*exec.Cmd{}, []string{}
	for range 3 {
		address := freeAddress(p.t)
		brokers[address] = server(punctualtest.Binary(p.t), "serve", "--listen", address, "--redis", "redis://"+redis, "--lease", "2s")
		addresses = append(addresses, address)
	}
	connect := func() *punctual.Client {
		client, err := punctual.New("http://"+strings.Join(addresses, ",http://"), append(options, punctual.Namespace("shop"))...)
		if err != nil {
			p.t.Fatal(err)
		}
		return client
	}
	leader := func() (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		topology, err := connect().Topology(ctx)
		if err != nil {
			return "", err
		}
		for _, broker := range topology.Brokers {
			if len(broker.Partitions) == 0 {
				return "", fmt.Errorf("%s owns no partitions", broker.Address)
			}
		}
		if len(topology.Brokers) != 3 || brokers[topology.Leader] == nil {
			return "", fmt.Errorf("%d brokers, leader %q", len(topology.Brokers), topology.Leader)
		}
		return topology.Leader, nil
	}
	p.until("three brokers own partitions", func() error {
		first, err := leader()
		slices.SortFunc(addresses, func(a, b string) int {
			switch first {
			case a:
				return -1
			case b:
				return 1
			}
			return strings.Compare(a, b)
		})
		return err
	})
	p.client = connect()
	p.killLeader = func() {
		address, err := leader()
		if err != nil {
			p.t.Fatal(err)
		}
		_ = brokers[address].Process.Kill()
		_ = brokers[address].Wait()
	}
}

func freeAddress(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func (p *player) until(what string, holds func() error) {
	deadline := time.Now().Add(time.Minute)
	for err := holds(); err != nil; err = holds() {
		if time.Now().After(deadline) {
			p.t.Fatalf("not within a minute: %s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (p *player) step(number int, step map[string]json.RawMessage) bool {
	var verb string
	var arguments object
	var gives, fails any
	var bind map[string]string
	client := p.client
	for key, text := range step {
		value := p.fill(parse(p.t, text))
		switch key {
		case "gives":
			gives = value
		case "fails":
			fails = value
		case "bind":
			bind = map[string]string{}
			for name, path := range value.(object) {
				bind[name] = path.(string)
			}
		case "token":
			client = client.WithToken(value.(string))
		default:
			if verb != "" {
				p.t.Fatalf("step %d has two verbs: %s and %s", number, verb, key)
			}
			verb, arguments = key, value.(object)
		}
	}
	if namespace, ok := arguments["namespace"].(string); ok {
		client = client.Namespace(namespace)
		delete(arguments, "namespace")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	answer, err := p.call(ctx, client, verb, arguments)
	at := fmt.Sprintf("step %d (%s)", number, verb)
	if fails != nil {
		var problem *punctual.Problem
		if !errors.As(err, &problem) {
			p.t.Errorf("%s must fail with %v; it gave %v, %v", at, fails, answer, err)
			return false
		}
		if why := match(fails, parse(p.t, problem.Raw)); why != "" {
			p.t.Errorf("%s: %s in the problem %s", at, why, problem.Raw)
			return false
		}
		return true
	}
	if err != nil {
		p.t.Errorf("%s: %v", at, err)
		return false
	}
	text, err := json.Marshal(answer)
	if err != nil {
		p.t.Fatal(err)
	}
	form := parse(p.t, text)
	if gives != nil {
		if why := match(gives, form); why != "" {
			p.t.Errorf("%s: %s in the answer %s", at, why, text)
			return false
		}
	}
	for name, path := range bind {
		value, ok := lookup(form, path)
		if !ok {
			p.t.Errorf("%s: the answer has no %s: %s", at, path, text)
			return false
		}
		p.bound[name] = value
	}
	return true
}

// arguments reads the arguments of a verb and notes which ones are used.
type arguments struct {
	values object
	err    error
}

func (a *arguments) take(name string) any {
	value := a.values[name]
	delete(a.values, name)
	return value
}

// wrong notes an argument of another type than the verb has.
func (a *arguments) wrong(name string, value any) {
	a.err = errors.Join(a.err, fmt.Errorf("argument %s cannot be %v", name, value))
}

func (a *arguments) text(name string) string {
	value := a.take(name)
	text, ok := value.(string)
	if !ok && value != nil {
		a.wrong(name, value)
	}
	return text
}

func (a *arguments) number(name string) int {
	switch value := a.take(name).(type) {
	case nil:
	case float64:
		return int(value)
	case string:
		number, err := strconv.Atoi(value)
		a.err = errors.Join(a.err, err)
		return number
	default:
		a.wrong(name, value)
	}
	return 0
}

func (a *arguments) texts(name string) []string {
	value := a.take(name)
	values, ok := value.([]any)
	if !ok && value != nil {
		a.wrong(name, value)
	}
	texts := make([]string, len(values))
	for i, value := range values {
		if texts[i], ok = value.(string); !ok {
			a.wrong(name, value)
		}
	}
	return texts
}

func (a *arguments) duration(name string) time.Duration {
	text := a.text(name)
	if text == "" {
		return 0
	}
	parsed, err := punctual.ParseDuration(text)
	a.err = errors.Join(a.err, err)
	return parsed
}

func (a *arguments) instant(name string) time.Time {
	text := a.text(name)
	if text == "" {
		return time.Time{}
	}
	parsed, err := time.Parse(time.RFC3339, text)
	a.err = errors.Join(a.err, err)
	return parsed
}

func (a *arguments) filters() []punctual.Filter {
	var filters []punctual.Filter
	if state := a.text("state"); state != "" {
		filters = append(filters, punctual.InState(punctual.State(state)))
	}
	if kind := a.text("kind"); kind != "" {
		filters = append(filters, punctual.OfKind(punctual.Kind(kind)))
	}
	if end := a.text("end"); end != "" {
		filters = append(filters, punctual.EndedAs(punctual.End(end)))
	}
	if prefix := a.text("key_prefix"); prefix != "" {
		filters = append(filters, punctual.KeyPrefix(prefix))
	}
	if label := a.text("label"); label != "" {
		name, value, _ := strings.Cut(label, ":")
		filters = append(filters, punctual.Label(name, value))
	}
	if from := a.instant("from"); !from.IsZero() {
		filters = append(filters, punctual.From(from))
	}
	if to := a.instant("to"); !to.IsZero() {
		filters = append(filters, punctual.Until(to))
	}
	if limit := a.number("limit"); limit != 0 {
		filters = append(filters, punctual.PageSize(limit))
	}
	return filters
}

func (a *arguments) when() (when []punctual.When) {
	if _, ok := a.values["in"]; ok {
		when = append(when, punctual.In(a.duration("in")))
	}
	if _, ok := a.values["within"]; ok {
		when = append(when, punctual.Within(a.duration("within")))
	}
	if _, ok := a.values["at"]; ok {
		when = append(when, punctual.At(a.instant("at")))
	}
	return when
}

// taskOf makes a task from its JSON: by the fields of the package if they can hold it, or else, for
// tasks that are wrong on purpose, as text.
func taskOf(value any) punctual.TaskOption {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	var fields punctual.TaskFields
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.DisallowUnknownFields()
	if decoder.Decode(&fields) == nil {
		again, err := json.Marshal(fields)
		if err == nil && match(value, mustParse(again)) == "" {
			return punctual.Fields(fields)
		}
	}
	return punctual.TaskJSON(text)
}

func (p *player) call(ctx context.Context, c *punctual.Client, verb string, values object) (any, error) {
	a := &arguments{values: values}
	answer, err := p.dispatch(ctx, c, verb, a)
	if a.err != nil {
		p.t.Fatalf("%s: %v", verb, a.err)
	}
	if len(a.values) > 0 {
		p.t.Fatalf("%s has unknown arguments: %v", verb, a.values)
	}
	return answer, err
}

func (p *player) dispatch(ctx context.Context, c *punctual.Client, verb string, a *arguments) (any, error) {
	switch verb {
	case "schedule":
		options := []punctual.ScheduleOption{taskOf(a.take("task"))}
		if version := a.number("if_match"); version != 0 {
			options = append(options, punctual.IfMatch(int64(version)))
		}
		switch star := a.text("if_none_match"); star {
		case "":
		case "*":
			options = append(options, punctual.IfNew())
		default:
			p.t.Fatalf("unknown if_none_match %q", star)
		}
		if key := a.text("idempotency_key"); key != "" {
			options = append(options, punctual.IdempotencyKey(key))
		}
		if key, ok := a.take("key").(string); ok {
			return c.Schedule(ctx, key, options...)
		}
		return c.ScheduleNew(ctx, options...)
	case "schedule_many":
		list, _ := a.take("tasks").([]any)
		tasks := make([]punctual.TaskFields, len(list))
		for i, task := range list {
			tasks[i] = punctual.NewTask("", taskOf(task))
		}
		results, err := c.ScheduleMany(ctx, tasks)
		forms := make([]any, len(results))
		for i, result := range results {
			forms[i] = formOf(result.Task())
		}
		return object{"results": forms}, err
	case "get":
		return c.Get(ctx, a.text("task"))
	case "pause":
		return c.Pause(ctx, a.text("task"))
	case "resume":
		return c.Resume(ctx, a.text("task"))
	case "fire":
		return c.Fire(ctx, a.text("task"))
	case "explain":
		return c.Explain(ctx, a.text("task"))
	case "cancel":
		result, err := c.Cancel(ctx, a.text("task"))
		if missing, ok := result.(punctual.NotFound); ok {
			return nil, missing.Problem
		}
		return cancelForm(result), err
	case "cancel_many":
		var results []punctual.CancelManyResult
		var err error
		if _, ok := a.values["keys"]; ok {
			results, err = c.CancelMany(ctx, a.texts("keys"))
		} else {
			results, err = c.CancelManyByID(ctx, a.texts("ids"))
		}
		forms := []any{}
		for _, result := range results {
			form := cancelForm(result.Result)
			if result.Err != nil {
				form = object{"problem": formOf[object](nil, result.Err)}
			}
			if result.Key != "" {
				form["key"] = result.Key
			}
			if result.ID != "" {
				form["id"] = result.ID
			}
			forms = append(forms, form)
		}
		return object{"results": forms}, err
	case "touch":
		task := a.text("task")
		var options []punctual.TouchOption
		for _, when := range a.when() {
			options = append(options, when)
		}
		return c.Touch(ctx, task, options...)
	case "touch_many":
		keys := a.texts("keys")
		var options []punctual.TouchManyOption
		for _, when := range a.when() {
			options = append(options, when)
		}
		if create := a.take("create"); create != nil {
			options = append(options, punctual.Create(taskOf(create)))
		}
		return c.TouchMany(ctx, keys, options...)
	case "list":
		pages := a.number("pages")
		filters := a.filters()
		if pages == 1 {
			return c.ListPage(ctx, filters...)
		}
		return collect("tasks", c.List(ctx, filters...))
	case "fires":
		task, pages := a.text("task"), a.number("pages")
		filters := a.filters()
		if task == "" && pages == 1 {
			return c.FiresPage(ctx, filters...)
		}
		if task != "" {
			fires, err := c.History(ctx, task, filters...)
			return object{"fires": fires}, err
		}
		return collect("fires", c.Fires(ctx, filters...))
	case "dead":
		return collect("dead", c.Dead(ctx, a.filters()...))
	case "redrive":
		all, _ := a.take("all").(bool)
		return c.Redrive(ctx, punctual.DeadSelection{IDs: a.texts("ids"), All: all})
	case "delete_dead":
		return object{"result": "deleted"}, c.DeleteDead(ctx, a.text("fire_id"))
	case "rules":
		rules, err := c.Rules(ctx)
		return object{"rules": rules}, err
	case "put_rule":
		return c.PutRule(ctx, a.text("prefix"), taskOf(a.take("create")))
	case "delete_rule":
		return object{"result": "deleted"}, c.DeleteRule(ctx, a.text("prefix"))
	case "stats":
		return c.Stats(ctx)
	case "queues":
		queues, err := c.Queues(ctx)
		return object{"queues": queues}, err
	case "lanes":
		return c.Lanes(ctx)
	case "workers":
		workers, err := c.Workers(ctx)
		return object{"workers": workers}, err
	case "namespaces":
		return collect("namespaces", c.Namespaces(ctx))
	case "topology":
		return c.Topology(ctx)
	case "whoami":
		return c.Whoami(ctx)
	case "forecast":
		return c.Forecast(ctx, punctual.ForecastQuery{For: a.duration("for"), Step: a.duration("step"), At: a.instant("at")})
	case "preview":
		return c.Preview(ctx, a.text("cron"), punctual.PreviewQuery{
			Timezone: a.text("timezone"), Count: a.number("count"), From: a.instant("from"),
			DST: punctual.DST{Gap: a.text("dst_gap"), Overlap: a.text("dst_overlap")},
		})
	case "lease":
		deliveries, err := c.Lease(ctx, a.text("queue"), punctual.LeaseRequest{
			Max: a.number("max"), Wait: a.duration("wait"), Lease: a.duration("lease"), Worker: a.text("worker"),
		})
		return object{"deliveries": append([]punctual.Delivery{}, deliveries...)}, err
	case "ack":
		return p.ack(ctx, c, a)
	case "fail":
		retryIn := punctual.OwnBackoff
		if _, ok := a.values["retry_in"]; ok {
			retryIn = a.duration("retry_in")
		}
		result, err := c.Fail(ctx, a.text("queue"), a.text("token"), a.text("reason"), retryIn)
		return object{"result": result}, err
	case "refuse":
		result, err := c.Refuse(ctx, a.text("queue"), a.text("token"), a.text("reason"))
		return object{"result": result}, err
	case "extend":
		result, err := c.Extend(ctx, a.text("queue"), a.text("token"), a.duration("lease"))
		return object{"result": result}, err
	case "work":
		return workStep(ctx, c, a)
	case "verify":
		return verify(a)
	case "receiver":
		p.receiver = newReceiver(p.t, a.take("answers").([]any))
		return object{"url": p.receiver.server.URL + "/hook"}, nil
	case "received":
		return p.receiver.received(), nil
	case "advance":
		step := punctual.Advance{By: a.duration("by"), To: a.instant("to")}
		if _, ok := a.values["wait"]; ok {
			if step.Wait = a.duration("wait"); step.Wait == 0 {
				step.Wait = punctual.NoWait
			}
		}
		return c.AdvanceClock(ctx, step)
	case "clock":
		return c.Clock(ctx)
	case "restart":
		if p.restart == nil {
			p.t.Fatal("restart is only for the broker serve")
		}
		p.restart()
		return object{}, nil
	case "kill_leader":
		if p.killLeader == nil {
			p.t.Fatal("kill_leader is only for the broker cluster")
		}
		p.killLeader()
		return object{}, nil
	}
	p.t.Fatalf("unknown verb %q", verb)
	return nil, nil
}

func (p *player) ack(ctx context.Context, c *punctual.Client, a *arguments) (any, error) {
	queue := a.text("queue")
	var results []punctual.AckResult
	var err error
	if entries, ok := a.take("acks").([]any); ok {
		acks := make([]punctual.AckEntry, len(entries))
		for i, entry := range entries {
			acks[i].Token = entry.(object)["token"].(string)
			if result, ok := entry.(object)["result"]; ok {
				acks[i].Result, _ = json.Marshal(result)
			}
		}
		results, err = c.AckResults(ctx, queue, acks...)
	} else {
		results, err = c.Ack(ctx, queue, a.texts("tokens")...)
	}
	return object{"results": results}, err
}

// workStep runs the worker of the package for some deliveries.
func workStep(ctx context.Context, c *punctual.Client, a *arguments) (any, error) {
	queue, count := a.text("queue"), a.number("count")
	outcomes := a.take("handler").([]any)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	handled := []any{}
	w := c.Worker(punctual.Concurrency(1))
	punctual.HandleResult(w, queue, func(_ context.Context, fire punctual.Fire[json.RawMessage]) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		outcome := outcomes[min(len(handled), len(outcomes)-1)].(object)
		handled = append(handled, object{
			"fire_id": fire.ID, "task": fire.Task, "key": fire.Key, "occasion": fire.Occasion,
			"attempt": fire.Attempt, "version": fire.Version, "payload": fire.Payload,
			"fire_at": fire.FireAt, "fired_at": fire.FiredAt, "lag_ms": fire.Lag.Milliseconds(),
		})
		if len(handled) == count {
			stop()
		}
		reason, _ := outcome["reason"].(string)
		switch outcome["do"] {
		case "ok":
			return outcome["result"], nil
		case "retry":
			after := punctual.OwnBackoff
			if text, ok := outcome["after"].(string); ok {
				parsed, err := punctual.ParseDuration(text)
				if err != nil {
					return nil, err
				}
				after = parsed
			}
			return nil, punctual.Retry(after, reason)
		case "refuse":
			return nil, punctual.Refuse(reason)
		case "error":
			return nil, errors.New(reason)
		}
		return nil, punctual.Refuse(fmt.Sprintf("unknown outcome %v", outcome["do"]))
	})
	err := w.Run(ctx)
	mu.Lock()
	defer mu.Unlock()
	if err == nil && len(handled) != count {
		err = fmt.Errorf("the worker handled %d deliveries instead of %d", len(handled), count)
	}
	return object{"handled": handled}, err
}

func verify(a *arguments) (any, error) {
	header := http.Header{}
	for name, value := range a.take("headers").(object) {
		header.Set(name, value.(string))
	}
	var now time.Time
	switch value := a.take("now").(type) {
	case float64:
		now = time.Unix(int64(value), 0)
	case string:
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, err
		}
		now = time.Unix(seconds, 0)
	}
	verifier, err := webhook.NewVerifier(a.text("secret"), webhook.Now(func() time.Time { return now }))
	if err != nil {
		return nil, err
	}
	return object{"valid": verifier.Verify(header, []byte(a.text("body"))) == nil}, nil
}

// receiver answers webhooks and keeps them.
type receiver struct {
	server *httptest.Server
	mu     sync.Mutex
	got    []any
}

func newReceiver(t *testing.T, answers []any) *receiver {
	r := &receiver{got: []any{}}
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		headers := object{}
		for name := range request.Header {
			headers[strings.ToLower(name)] = request.Header.Get(name)
		}
		r.mu.Lock()
		answer := answers[min(len(r.got), len(answers)-1)].(object)
		r.got = append(r.got, object{"method": request.Method, "path": request.URL.Path, "headers": headers, "body": string(body)})
		r.mu.Unlock()
		if named, ok := answer["headers"].(object); ok {
			for name, value := range named {
				w.Header().Set(name, value.(string))
			}
		}
		w.WriteHeader(int(answer["status"].(float64)))
		if text, ok := answer["body"].(string); ok {
			_, _ = io.WriteString(w, text)
		}
	}))
	t.Cleanup(r.server.Close)
	return r
}

func (r *receiver) received() any {
	r.mu.Lock()
	defer r.mu.Unlock()
	return object{"requests": append([]any{}, r.got...)}
}

func collect[T any](name string, entries iter.Seq2[T, error]) (any, error) {
	all := []T{}
	for entry, err := range entries {
		if err != nil {
			return nil, err
		}
		all = append(all, entry)
	}
	return object{name: all}, nil
}

// formOf is a value, or the problem document of its error.
func formOf[T any](value T, err error) any {
	var problem *punctual.Problem
	if errors.As(err, &problem) {
		return problem.Raw
	}
	if err != nil {
		return object{"error": err.Error()}
	}
	return value
}

func cancelForm(result punctual.CancelResult) object {
	switch result := result.(type) {
	case punctual.Cancelled:
		return object{"result": "cancelled"}
	case punctual.Firing:
		return object{"result": "firing", "attempt": result.Attempt}
	case punctual.AlreadyFired:
		return object{"result": "already_fired", "fired_at": result.At}
	case punctual.NotFound:
		return object{"result": "not_found"}
	}
	return object{}
}

// fill replaces $name by what is bound, and $repeat by its text.
func (p *player) fill(value any) any {
	switch value := value.(type) {
	case string:
		if bound, ok := p.bound[strings.TrimPrefix(value, "$")]; ok && strings.HasPrefix(value, "$") {
			return bound
		}
		for name, bound := range p.bound {
			if text, ok := bound.(string); ok {
				value = strings.ReplaceAll(value, "$"+name, text)
			}
		}
		return value
	case []any:
		for i := range value {
			value[i] = p.fill(value[i])
		}
	case object:
		if text, ok := value["$repeat"].(string); ok {
			return strings.Repeat(text, int(value["times"].(float64)))
		}
		for name := range value {
			value[name] = p.fill(value[name])
		}
	}
	return value
}

// match says why a value does not contain the expected one; "" if it does. Absent and null are the
// same, because the types of Go do not distinguish them; equal instants and equal durations are equal
// in any form, because the types of Go keep the value only.
func match(expected, value any) string {
	switch expected := expected.(type) {
	case object:
		for name, operand := range expected {
			if strings.HasPrefix(name, "$") {
				return condition(name, operand, value)
			}
		}
		fields, ok := value.(object)
		if !ok {
			return fmt.Sprintf("%v is not an object", value)
		}
		for name, want := range expected {
			if why := match(want, fields[name]); why != "" {
				return name + ": " + why
			}
		}
		return ""
	case []any:
		entries, ok := value.([]any)
		if !ok || len(entries) != len(expected) {
			return fmt.Sprintf("%v does not have %d entries", value, len(expected))
		}
		for i := range expected {
			if why := match(expected[i], entries[i]); why != "" {
				return fmt.Sprintf("%d: %s", i, why)
			}
		}
		return ""
	case string:
		text, ok := value.(string)
		if ok && (text == expected || sameInstant(text, expected) || sameDuration(text, expected)) {
			return ""
		}
	default:
		if reflect.DeepEqual(expected, value) {
			return ""
		}
	}
	return fmt.Sprintf("%.200v is not %.200v", value, expected)
}

func sameInstant(a, b string) bool {
	first, err := time.Parse(time.RFC3339, a)
	if err != nil {
		return false
	}
	second, err := time.Parse(time.RFC3339, b)
	return err == nil && first.Equal(second)
}

func sameDuration(a, b string) bool {
	first, err := punctual.ParseDuration(a)
	if err != nil {
		return false
	}
	second, err := punctual.ParseDuration(b)
	return err == nil && first == second
}

func condition(name string, operand, value any) string {
	holds := false
	switch name {
	case "$lt":
		number, ok := value.(float64)
		holds = ok && number < operand.(float64)
	case "$gt":
		number, ok := value.(float64)
		holds = ok && number > operand.(float64)
	case "$length":
		switch value := value.(type) {
		case []any:
			holds = float64(len(value)) == operand.(float64)
		case string:
			holds = float64(len(value)) == operand.(float64)
		}
	case "$any":
		holds = value != nil
	case "$absent":
		holds = value == nil
	case "$starts":
		text, ok := value.(string)
		holds = ok && strings.HasPrefix(text, operand.(string))
	case "$contains":
		text, ok := value.(string)
		holds = ok && strings.Contains(text, operand.(string))
	default:
		return "unknown condition " + name
	}
	if holds {
		return ""
	}
	return fmt.Sprintf("%.200v is not %s %v", value, name, operand)
}

// lookup follows a path like deliveries.0.token.
func lookup(value any, path string) (any, bool) {
	for _, part := range strings.Split(path, ".") {
		switch inner := value.(type) {
		case object:
			found, ok := inner[part]
			if !ok {
				return nil, false
			}
			value = found
		case []any:
			var index int
			if _, err := fmt.Sscan(part, &index); err != nil || index < 0 || index >= len(inner) {
				return nil, false
			}
			value = inner[index]
		default:
			return nil, false
		}
	}
	return value, true
}

func parse(t *testing.T, text []byte) any {
	t.Helper()
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return value
}

func mustParse(text []byte) any {
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		panic(err)
	}
	return value
}
