package punctual

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// recorder notes the method, path, query and headers of each request.
type recorder struct {
	mu    sync.Mutex
	calls []recorded
}

type recorded struct {
	method, path string
	query        []string
	header       http.Header
}

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	var names []string
	for name := range request.URL.Query() {
		names = append(names, name)
	}
	r.mu.Lock()
	r.calls = append(r.calls, recorded{request.Method, request.URL.Path, names, request.Header.Clone()})
	r.mu.Unlock()
	return http.DefaultTransport.RoundTrip(request)
}

// document is the part of the OpenAPI document that is compared.
type document struct {
	Paths map[string]map[string]struct {
		Parameters []struct{ Name, In string }
	}
	Components struct{ Schemas map[string]schema }
}

type schema struct {
	Properties          map[string]schema
	OneOf, AnyOf, AllOf []schema
	Ref                 string `json:"$ref"`
}

// schemaTypes names the type of this package for each schema that is an object.
var schemaTypes = map[string]any{
	"Action": Action{}, "Actions": Actions{}, "TargetFires": TargetFires{},
	"Ack": ackBody{}, "AckEntry": AckEntry{}, "Acked": acked{}, "AckedOne": AckResult{},
	"Alarm": Alarm{}, "AlarmCondition": AlarmCondition{}, "AlarmNotice": AlarmNotice{},
	"AlarmReceiver": AlarmReceiver{}, "AlarmRule": AlarmRule{}, "AlarmTest": AlarmTest{},
	"Alarms": alarmList{}, "Answer": Answer{}, "Attempt": Attempt{}, "Backoff": Backoff{},
	"Broker": Broker{}, "CancelAnswer": cancelAnswer{}, "CancelMany": cancelMany{},
	"CancelManyAnswer": cancelManyAnswer{}, "CancelOutcome": cancelAnswer{},
	"CancelResult": cancelAnswer{}, "ChatRobot": ChatRobot{}, "Connection": Connection{},
	"ConnectionTest": ConnectionTest{}, "Connections": Connections{}, "CountedNamespace": NamespaceInfo{},
	"DeadGroup": DeadGroup{}, "DeadGroupFilter": DeadGroupFilter{}, "DeadGroups": DeadGroups{},
	"DeadLetter": DeadLetter{}, "DeadLetterSelection": DeadSelection{}, "DeadLetters": DeadPage{},
	"DeadLettersCondition": DeadLettersCondition{}, "Deleted": deleted{},
	"DeletedLetters": DeletedLetters{}, "Deliveries": deliveries{}, "Delivery": Delivery{},
	"DryRun": DryRun{}, "Dst": DST{}, "EndedTask": Task{}, "Explanation": Explanation{},
	"ExponentialBackoff": ExponentialBackoff{}, "Extend": extendBody{}, "Fail": failBody{},
	"FailureShareCondition": FailureShareCondition{}, "FailuresCondition": FailuresCondition{},
	"Fire": FireRecord{}, "FirePage": FirePage{}, "Fires": FirePage{}, "Forecast": Forecast{},
	"GrantedNamespace": GrantedNamespace{}, "HttpTarget": HTTPTarget{}, "KeyProblem": KeyProblem{},
	"LagAnswer": Lag{}, "LagCondition": LagCondition{}, "LaneFailure": LaneFailure{}, "LaneInfo": LaneInfo{},
	"Lanes": LaneList{}, "Lease": leaseBody{},
	"LetterProblem": LetterProblem{}, "LiveRates": LiveRates{}, "LiveSecond": LiveSecond{},
	"LiveStates": LiveCounts{}, "MailReceiver": MailReceiver{}, "Namespaces": NamespacePage{},
	"NewOperation": newOperation{}, "NewTask": TaskFields{}, "NewTaskWithoutKey": TaskFields{},
	"NextFire": NextFire{}, "NoWorkersCondition": NoWorkersCondition{},
	"OneOperation": oneOperation{}, "Operation": Operation{}, "Operations": operationList{},
	"OverdueCondition": OverdueCondition{}, "Preview": Preview{}, "Problem": Problem{},
	"QueueInfo": QueueInfo{}, "Queues": queueList{}, "Ready": Readiness{}, "Redriven": Redriven{},
	"RedrivenFire": RedrivenFire{}, "Refuse": refuseBody{}, "RefuseRule": RefuseRule{},
	"Results": struct {
		Results []json.RawMessage `json:"results"`
	}{},
	"RetryPolicy": RetryPolicy{}, "ScheduledTask": Task{}, "Series": Series{},
	"SeriesPoint": SeriesPoint{}, "Settled": settled{}, "SkippedFires": SkippedFires{},
	"Source": Source{}, "SqlTarget": SQLTarget{},
	"KafkaTarget": KafkaTarget{}, "AmqpTarget": AMQPTarget{}, "NatsTarget": NATSTarget{}, "MqttTarget": MQTTTarget{},
	"RedisStreamTarget": RedisStreamTarget{}, "GrpcTarget": GRPCTarget{},
	"Stats": Stats{}, "Step": ForecastStep{}, "SuccessRule": SuccessRule{}, "Target": Target{},
	"Task": Task{}, "TaskFields": TaskFields{}, "TaskFilter": TaskFilter{}, "Tasks": TaskPage{},
	"TouchRule": TouchRule{}, "TouchRules": ruleList{},
	"Topology": Topology{}, "Touch": touch{}, "TouchMany": touchMany{},
	"TouchManyAnswer": TouchManyResult{}, "TouchedTask": Task{}, "Upcoming": Upcoming{},
	"WhoAmI": Identity{}, "WorkerInfo": WorkerInfo{}, "Workers": workerList{},
	// The clock of `punctual dev`, which only that command has in its document.
	"Advance": advanceBody{}, "Advanced": Advanced{}, "Clock": Clock{}, "ClockState": Clock{}, "Run": runBody{},
}

// properties are the names of the properties of a schema, those of its own alternatives included.
func (s schema) properties() []string {
	var names []string
	for name := range s.Properties {
		names = append(names, name)
	}
	for _, part := range slices.Concat(s.OneOf, s.AnyOf, s.AllOf) {
		names = append(names, part.properties()...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// tags are the JSON names of a struct, those of its embedded structs included.
func tags(of reflect.Type) []string {
	var names []string
	for i := range of.NumField() {
		field := of.Field(i)
		if field.Anonymous {
			names = append(names, tags(field.Type)...)
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

func TestEveryCallAndFieldOfTheDocumentIsInThePackage(t *testing.T) {
	record := &recorder{}
	broker := startServe(t)
	client := newClient(t, broker.url, Namespace("shop"), HTTPClient(&http.Client{Transport: record}))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	text, err := client.OpenAPI(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var doc document
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	callEverything(ctx, t, client)

	for name, schema := range doc.Components.Schemas {
		properties := schema.properties()
		if len(properties) == 0 {
			continue
		}
		value, known := schemaTypes[name]
		if !known {
			t.Errorf("schema %s (%s) has no type in this package", name, strings.Join(properties, ", "))
			continue
		}
		have := tags(reflect.TypeOf(value))
		for _, property := range properties {
			if !slices.Contains(have, property) {
				t.Errorf("property %s of schema %s is not a field of %T", property, name, value)
			}
		}
	}
	record.mu.Lock()
	defer record.mu.Unlock()
	for path, methods := range doc.Paths {
		pattern := regexp.MustCompile("^" + regexp.MustCompile(`\\\{[a-z_]+\\\}`).ReplaceAllString(regexp.QuoteMeta(path), "[^/]+") + "$")
		for method, operation := range methods {
			var made []recorded
			for _, call := range record.calls {
				if strings.EqualFold(call.method, method) && pattern.MatchString(call.path) && !otherLiteral(doc, path, call.path) {
					made = append(made, call)
				}
			}
			if len(made) == 0 {
				t.Errorf("no method of the client calls %s %s", strings.ToUpper(method), path)
				continue
			}
			for _, parameter := range operation.Parameters {
				sent := slices.ContainsFunc(made, func(call recorded) bool {
					return parameter.In == "path" ||
						parameter.In == "query" && slices.Contains(call.query, parameter.Name) ||
						parameter.In == "header" && call.header.Get(parameter.Name) != ""
				})
				if !sent {
					t.Errorf("no method of the client sends %s %s of %s %s", parameter.In, parameter.Name, strings.ToUpper(method), path)
				}
			}
		}
	}
}

// otherLiteral reports whether the called path is another path of the document, literally or with
// fewer parameters: /v1/live is not /v1/{namespace}.
func otherLiteral(doc document, path, called string) bool {
	_, literal := doc.Paths[called]
	return literal && called != path
}

// callEverything calls every method of the client once, with all parameters. Answers that depend
// on what the broker has may be problems; a request that the broker does not understand may not.
func callEverything(ctx context.Context, t *testing.T, c *Client) {
	t.Helper()
	check := func(name string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	now := time.Now()
	task, err := c.Schedule(ctx, "order-1", In(time.Hour), ToQueue("unpaid"), JSON(map[string]int{"order": 1}), Label("campaign", "7"))
	check("Schedule", err)
	_, err = c.Schedule(ctx, "order-1", In(2*time.Hour), ToQueue("unpaid"), IfMatch(task.Version), Minimal())
	check("Schedule with IfMatch", err)
	_, err = c.Schedule(ctx, "order-2", Every(time.Hour), ToQueue("unpaid"), IfNew(), Count(3), Jitter(time.Second),
		StartsAt(now.Add(time.Hour)), EndsAt(now.Add(99*time.Hour)), Misfire(MisfireSkip), Overlap(OverlapSkip))
	check("Schedule with IfNew", err)
	_, err = c.Schedule(ctx, "order-3", Cron("0 9 * * MON-FRI", "Europe/Berlin"), ClockChanges("skip", "both"),
		To(Target{HTTP: &HTTPTarget{URL: "http://127.0.0.1:1/", Method: "PUT", Headers: map[string]string{"x-a": "b"},
			Success: &SuccessRule{Statuses: []int{200}, JSON: map[string]any{"/errcode": 0}}, Refuse: &RefuseRule{Statuses: []int{400}}}}),
		Bytes([]byte{0xff}, "image/png"), Guaranteed(AtMostOnce), Attempts(2), ListedPauses(time.Second, time.Minute),
		RetryJitter(0.5), Timeout(time.Second), ExpiresAfter(time.Hour), CreatePaused(), OnDone(QueueTarget("done")), OnDead(URLTarget("http://127.0.0.1:1/")))
	check("Schedule with all fields", err)
	_, err = c.Schedule(ctx, "lamp", Within(time.Hour), PostponeMax(9*time.Hour), OnReturn(), ToQueue("silent"), ExponentialPauses(time.Second, 2, time.Minute))
	check("Schedule a watch", err)
	_, err = c.ScheduleNew(ctx, At(now.Add(time.Hour)), ToQueue("unpaid"), IdempotencyKey("a"), Minimal(), FixedBackoff(time.Second))
	check("ScheduleNew", err)
	results, err := c.ScheduleMany(ctx, []TaskFields{NewTask("a", In(time.Hour), ToQueue("q")), NewTask("b", ToQueue("q")), NewTask("c", In(0), ToQueue("now"))})
	check("ScheduleMany", err)
	if len(results) != 3 || results[0].Err() != nil || results[1].Err() == nil || results[2].Err() != nil {
		t.Errorf("ScheduleMany gave %v", results)
	}
	_, err = c.Get(ctx, "order-1", AwaitChange(1, time.Millisecond))
	check("Get", err)
	_, err = c.Touch(ctx, "lamp", Minimal())
	check("Touch", err)
	_, err = c.TouchMany(ctx, []string{"lamp", "new"}, Create(Within(time.Hour), ToQueue("silent")))
	check("TouchMany", err)
	_, err = c.Pause(ctx, "lamp")
	check("Pause", err)
	_, err = c.Resume(ctx, "lamp")
	check("Resume", err)
	_, err = c.Fire(ctx, "order-2")
	check("Fire", err)
	for _, err := range c.List(ctx, InState(StateScheduled), OfKind(KindOnce), KeyPrefix("o"), Label("campaign", "7"), From(now), Until(now.Add(99*time.Hour)), PageSize(1)) {
		check("List", err)
	}
	listed := 0
	for _, err := range c.List(ctx, PageSize(1)) {
		check("List by pages", err)
		listed++
	}
	if listed < 8 {
		t.Errorf("List gave %d tasks in pages of one; at least 8 are there", listed)
	}
	_, err = c.Explain(ctx, "order-1")
	check("Explain", err)

	leased, err := c.Lease(ctx, "now", LeaseRequest{Max: 1, Wait: 10 * time.Second, Lease: time.Minute, Worker: "me"})
	check("Lease", err)
	if len(leased) != 1 {
		t.Fatalf("Lease gave %d deliveries", len(leased))
	}
	_, err = c.Workers(ctx)
	check("Workers", err)
	extended, err := c.Extend(ctx, "now", leased[0].Token, time.Minute)
	if check("Extend", err); extended != ResultExtended {
		t.Errorf("Extend gave %q", extended)
	}
	refusedResult, err := c.Refuse(ctx, "now", leased[0].Token, "no such order")
	if check("Refuse", err); refusedResult != ResultRefused {
		t.Errorf("Refuse gave %q", refusedResult)
	}
	stale, err := c.Fail(ctx, "now", leased[0].Token, "late", time.Second)
	if check("Fail", err); stale != ResultStale {
		t.Errorf("Fail gave %q", stale)
	}
	_, err = c.AckResults(ctx, "now", AckEntry{leased[0].Token, json.RawMessage(`1`)})
	check("AckResults", err)
	_, err = c.Ack(ctx, "now", leased[0].Token)
	check("Ack", err)

	for _, err := range c.Fires(ctx, EndedAs(EndDead), KeyPrefix("c"), Label("a", "b"), From(now.Add(-time.Hour)), Until(now.Add(time.Hour)), PageSize(1), AfterCursor("x")) {
		mustUnderstand(t, "Fires", err)
	}
	_, err = c.History(ctx, "c", PageSize(1))
	check("History", err)
	dead := eventually(t, func() ([]DeadLetter, bool) {
		var letters []DeadLetter
		for letter, err := range c.Dead(ctx, PageSize(1)) {
			check("Dead", err)
			letters = append(letters, letter)
		}
		return letters, len(letters) == 1
	})
	for _, err := range c.Dead(ctx, ForReason("x"), ForTarget("y"), AfterCursor("x")) {
		mustUnderstand(t, "Dead with filters", err)
	}
	_, err = c.DeadGroups(ctx)
	check("DeadGroups", err)
	redriven, err := c.Redrive(ctx, DeadIDs(dead[0].FireID))
	if check("Redrive", err); redriven.Redriven != 1 {
		t.Errorf("Redrive gave %+v", redriven)
	}
	_, err = c.DeleteDeadMany(ctx, DeadWhere("x", "y"))
	check("DeleteDeadMany", err)
	if err := c.DeleteDead(ctx, dead[0].FireID); err == nil {
		t.Error("DeleteDead deleted a letter that was redriven")
	}
	cancelled, err := c.Cancel(ctx, "order-1")
	if check("Cancel", err); cancelled != (Cancelled{}) {
		t.Errorf("Cancel gave %#v", cancelled)
	}
	many, err := c.CancelMany(ctx, []string{"a", "nothing"})
	if check("CancelMany", err); len(many) != 2 || many[0].Result != (Cancelled{}) || many[1].Result != (NotFound{}) {
		t.Errorf("CancelMany gave %+v", many)
	}
	_, err = c.CancelManyByID(ctx, []string{task.ID})
	check("CancelManyByID", err)

	_, err = c.Stats(ctx)
	check("Stats", err)
	_, err = c.Forecast(ctx, ForecastQuery{For: 2 * time.Hour, Step: time.Hour, At: now.Add(time.Hour), ByTarget: true})
	check("Forecast", err)
	_, err = c.Series(ctx, SeriesQuery{For: time.Hour, Step: time.Minute})
	check("Series", err)
	_, err = c.Preview(ctx, "0 9 * * *", PreviewQuery{Timezone: "Europe/Berlin", Count: 2, From: now, DST: DST{Gap: "skip", Overlap: "both"}})
	check("Preview", err)
	_, err = c.Queues(ctx)
	check("Queues", err)
	_, err = c.Lanes(ctx)
	check("Lanes", err)
	namespaces := 0
	for _, err := range c.Namespace("other").Namespaces(ctx, PageSize(1)) {
		check("Namespaces", err)
		namespaces++
	}
	for _, err := range c.Namespaces(ctx, AfterCursor("x")) {
		mustUnderstand(t, "Namespaces with a cursor", err)
	}
	if namespaces != 1 {
		t.Errorf("Namespaces gave %d namespaces", namespaces)
	}
	_, err = c.Topology(ctx)
	check("Topology", err)
	_, err = c.Whoami(ctx)
	check("Whoami", err)
	_, err = c.Ready(ctx)
	check("Ready", err)
	check("Alive", c.Alive(ctx))
	_, err = c.Metrics(ctx)
	check("Metrics", err)
	for _, err := range c.Live(ctx) {
		check("Live", err)
		break
	}
	for second, err := range c.LiveAll(ctx) {
		if check("LiveAll", err); len(second.Brokers) != 1 {
			t.Errorf("LiveAll gave the brokers %v", second.Brokers)
		}
		break
	}
	rule := AlarmRule{When: AlarmCondition{DeadLetters: &DeadLettersCondition{}}, To: AlarmReceiver{HTTP: &HTTPTarget{URL: "http://127.0.0.1:1/"}}}
	_, err = c.PutAlarm(ctx, "errors", rule)
	check("PutAlarm", err)
	_, err = c.Alarm(ctx, "errors")
	check("Alarm", err)
	_, err = c.Alarms(ctx)
	check("Alarms", err)
	_, err = c.TestAlarm(ctx, "errors")
	check("TestAlarm", err)
	check("DeleteAlarm", c.DeleteAlarm(ctx, "errors"))
	connections, err := c.Connections(ctx)
	if check("Connections", err); err == nil && (len(connections.Connections) != 0 || len(connections.Sources) != 0) {
		t.Errorf("Connections gave %+v", connections)
	}
	if _, err := c.TestConnection(ctx, "shop-db"); !errors.Is(err, ErrConnectionNotFound) {
		t.Errorf("TestConnection of a connection that is not configured: %v", err)
	}
	touchRule, err := c.PutRule(ctx, "unit:", Within(48*time.Hour), OnReturn(), ToQueue("silent"))
	if check("PutRule", err); err == nil && (touchRule.Prefix != "unit:" || touchRule.Create.Target.Queue != "silent") {
		t.Errorf("PutRule gave %+v", touchRule)
	}
	byRule, err := c.TouchMany(ctx, []string{"unit:7"})
	if check("TouchMany by a rule", err); err == nil && byRule.Created != 1 {
		t.Errorf("a touch by a rule gave %+v", byRule)
	}
	rules, err := c.Rules(ctx)
	if check("Rules", err); err == nil && (len(rules) != 1 || rules[0].Prefix != "unit:") {
		t.Errorf("Rules gave %+v", rules)
	}
	check("DeleteRule", c.DeleteRule(ctx, "unit:"))
	if err := c.DeleteRule(ctx, "unit:"); !errors.Is(err, ErrRuleNotFound) {
		t.Errorf("DeleteRule of a prefix without a rule: %v", err)
	}
	_, err = c.DryRunOperation(ctx, VerbPause, TaskFilter{KeyPrefix: "none-"})
	check("DryRunOperation", err)
	operation, err := c.StartOperation(ctx, VerbSpread, TaskFilter{KeyPrefix: "none-"}, Later(time.Minute))
	check("StartOperation", err)
	_, err = c.Operation(ctx, operation.ID)
	check("Operation", err)
	_, err = c.Operations(ctx)
	check("Operations", err)
	_, err = c.Actions(ctx, 1)
	check("Actions", err)
	_, err = c.StopOperation(ctx, operation.ID)
	check("StopOperation", err)
	// Only `punctual dev` has a clock; another broker answers that there is no such path.
	_, err = c.Clock(ctx)
	mustUnderstand(t, "Clock", err)
	_, err = c.RunClock(ctx, 1)
	mustUnderstand(t, "RunClock", err)
	_, err = c.FreezeClock(ctx)
	mustUnderstand(t, "FreezeClock", err)
	_, err = c.AdvanceClock(ctx, Advance{By: time.Second, Wait: time.Second})
	mustUnderstand(t, "AdvanceClock", err)
}

// mustUnderstand accepts problems of the values of a request, but none of its form: a parameter or
// a field that the broker does not know.
func mustUnderstand(t *testing.T, name string, err error) {
	t.Helper()
	if err != nil && strings.Contains(err.Error(), "unknown") {
		t.Errorf("%s: %v", name, err)
	}
}

// eventually repeats until the second value is true, for ten seconds at most.
func eventually[T any](t *testing.T, read func() (T, bool)) T {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		value, ok := read()
		if ok {
			return value
		}
		if time.Now().After(deadline) {
			t.Fatal(fmt.Sprintf("not so within ten seconds: %+v", value))
		}
		time.Sleep(20 * time.Millisecond)
	}
}
