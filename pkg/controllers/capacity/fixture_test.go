package capacity

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

const (
	testDriver    = "csi.example.com"
	testNamespace = "storage"
	testManagedBy = "external-provisioner"
)

// zone is the segment of one zone.
func zone(name string) topology.Segment { return topology.SegmentOf(map[string]string{"zone": name}) }

// place is a segment of two keys.
func place(zone, host string) topology.Segment {
	return topology.SegmentOf(map[string]string{"zone": zone, "host": host})
}

func lateClass(name string) *storagev1.StorageClass {
	late := storagev1.VolumeBindingWaitForFirstConsumer
	return &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: name, UID: types.UID("class-" + name), ResourceVersion: "1"},
		Provisioner:       testDriver,
		VolumeBindingMode: &late,
	}
}

// testSegments is a set of segments that a test changes.
type testSegments struct {
	mu       sync.Mutex
	set      map[topology.Segment]bool
	handlers []func(added, removed []topology.Segment)
	late     bool // not synced yet
}

func newTestSegments(segments ...topology.Segment) *testSegments {
	s := &testSegments{set: map[topology.Segment]bool{}}
	for _, segment := range segments {
		s.set[segment] = true
	}
	return s
}

func (s *testSegments) AddHandler(handler func(added, removed []topology.Segment)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers = append(s.handlers, handler)
	if len(s.set) > 0 {
		handler(slices.SortedFunc(maps.Keys(s.set), topology.Compare), nil)
	}
}

func (s *testSegments) HasSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.late
}

func (s *testSegments) markSynced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late = false
}

func (s *testSegments) change(added, removed []topology.Segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, segment := range added {
		s.set[segment] = true
	}
	for _, segment := range removed {
		delete(s.set, segment)
	}
	for _, handler := range s.handlers {
		handler(added, removed)
	}
}

// testClasses is a cache of classes that a test changes.
type testClasses struct {
	mu       sync.Mutex
	classes  map[string]*storagev1.StorageClass
	handlers []cluster.Handler[*storagev1.StorageClass]
	late     bool // not synced yet
}

func newTestClasses(classes ...*storagev1.StorageClass) *testClasses {
	c := &testClasses{classes: map[string]*storagev1.StorageClass{}}
	for _, class := range classes {
		c.classes[class.Name] = class
	}
	return c
}

func (c *testClasses) Class(name string) *storagev1.StorageClass {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.classes[name]
}

func (c *testClasses) OnClass(handler cluster.Handler[*storagev1.StorageClass]) (func() bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handlers = append(c.handlers, handler)
	for _, class := range c.classes {
		handler(nil, class)
	}
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return !c.late
	}, nil
}

func (c *testClasses) markSynced() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late = false
}

// set makes or replaces a class; with a new resource version, since that is what tells a change.
func (c *testClasses) set(class *storagev1.StorageClass) {
	c.mu.Lock()
	was := c.classes[class.Name]
	if was != nil {
		class.ResourceVersion = was.ResourceVersion + "1"
	}
	c.classes[class.Name] = class
	c.mu.Unlock()
	for _, handler := range c.handlers {
		handler(was, class)
	}
}

func (c *testClasses) remove(name string) {
	c.mu.Lock()
	was := c.classes[name]
	delete(c.classes, name)
	c.mu.Unlock()
	for _, handler := range c.handlers {
		handler(was, nil)
	}
}

// roomFor is what a test's driver does.
type roomFor func(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error)

// testDriverOf answers GetCapacity and keeps what it was asked.
type testDriverOf struct {
	mu     sync.Mutex
	answer roomFor
	calls  []*csi.GetCapacityRequest
}

func (d *testDriverOf) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	d.mu.Lock()
	d.calls = append(d.calls, req)
	answer := d.answer
	d.mu.Unlock()
	return answer(ctx, req)
}

func (d *testDriverOf) set(answer roomFor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = answer
}

// taken returns what was asked since it was last called, as "zone=a" and the like, sorted.
func (d *testDriverOf) taken() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	asked := []string{}
	for _, req := range d.calls {
		asked = append(asked, req.Parameters["class"]+" "+topology.SegmentOf(req.GetAccessibleTopology().GetSegments()).String())
	}
	slices.Sort(asked)
	d.calls = nil
	return asked
}

func always(bytes int64) roomFor {
	return func(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
		return &csi.GetCapacityResponse{AvailableCapacity: bytes}, nil
	}
}

// stage is a controller with all that it stands on, inside a synctest bubble.
type stage struct {
	t          *testing.T
	server     *server
	driver     *testDriverOf
	segments   *testSegments
	classes    *testClasses
	metrics    *Metrics
	registry   metrics.KubeRegistry
	cfg        Config
	controller *Controller
	logger     *klog.Logger // nil: the test's own
	objects    *Objects     // nil: those of server
	stop       func()       // of the running controller
}

// newStage sets a scene: one class and two zones, 1Gi of room everywhere, nothing published. Nothing runs yet.
func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{
		t:        t,
		server:   newServer(),
		driver:   &testDriverOf{answer: always(1 << 30)},
		segments: newTestSegments(zone("a"), zone("b")),
		classes:  newTestClasses(lateClass("fast")),
		registry: metrics.NewKubeRegistry(),
	}
	var err error
	if s.metrics, err = NewMetrics(s.registry.Register); err != nil {
		t.Fatal(err)
	}
	s.cfg = Config{
		Driver: s.driver, Segments: s.segments, Classes: s.classes, Metrics: s.metrics,
		PollInterval: time.Minute, Threads: 1, RetryStart: time.Second, RetryMax: 5 * time.Minute,
	}
	return s
}

// run starts a controller, after it has stopped the one before: a restart. It returns when all is quiet.
func (s *stage) run() {
	s.t.Helper()
	if s.stop != nil {
		s.stop()
	}
	for _, class := range s.classes.classes {
		class.Parameters = map[string]string{"class": class.Name}
	}
	s.classes.handlers, s.segments.handlers, s.server.watchers = nil, nil, nil
	if s.cfg.Objects = s.objects; s.objects == nil {
		s.cfg.Objects = s.server.asObjects(s.t)
	}
	var err error
	if s.controller, err = New(s.cfg); err != nil {
		s.t.Fatal(err)
	}
	logger, ctx := ktesting.NewTestContext(s.t)
	if s.logger != nil {
		logger = *s.logger
	}
	ctx = klog.NewContext(ctx, logger)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { s.cfg.Objects.Run(ctx) })
	running.Go(func() {
		if err := s.controller.Run(ctx, context.WithoutCancel(ctx)); err != nil {
			s.t.Error(err)
		}
	})
	s.stop = func() {
		cancel()
		running.Wait()
		s.stop = nil
	}
	s.settle()
}

// settle waits for what follows from a change, but not for a poll or a retry.
func (s *stage) settle() {
	time.Sleep(300 * time.Millisecond)
	synctest.Wait()
}

// bufferLog keeps the log of the next run, and returns a function that returns its errors.
func (s *stage) bufferLog() (errors func() string) {
	logger := ktesting.NewLogger(s.t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	s.logger = &logger
	return func() string {
		var lines []string
		for line := range strings.Lines(logger.GetSink().(ktesting.Underlier).GetBuffer().String()) {
			if strings.HasPrefix(line, "E") {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}
}

// inBubble runs a test with a stage, and stops what it left running.
func inBubble(t *testing.T, test func(t *testing.T, s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		test(t, s)
		if s.stop != nil {
			s.stop()
		}
	})
}

// published is a managed object as an earlier process may have left it.
func published(class string, segment topology.Segment, bytes int64) *storagev1.CSIStorageCapacity {
	id := identity{driver: testDriver, managedBy: testManagedBy, namespace: testNamespace}
	return newObject(Key{Class: class, Segment: segment}, id, room{available: bytes})
}

// gauges returns goal, current and obsolete as the metrics show them.
func (s *stage) gauges() [3]float64 {
	s.t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		values[family.GetName()] = family.GetMetric()[0].GetGauge().GetValue()
	}
	return [3]float64{
		values["csistoragecapacities_desired_goal"],
		values["csistoragecapacities_desired_current"],
		values["csistoragecapacities_obsolete"],
	}
}
