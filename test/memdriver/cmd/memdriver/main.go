// Command memdriver serves the in-memory CSI driver until SIGTERM or SIGINT, for demos and for a look at what
// a sidecar sends. It prints one line per call and can keep its record as JSON lines.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "memdriver:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

type options struct {
	socket, name, nodeID, record string
	capabilities                 []string
	topology                     map[string]string
	segments                     []string
	capacity, maxVolume          string
	dir, registration            string
	delay, notReadyFor           time.Duration
	fail                         []string
	quiet                        bool
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.socket, "socket", "/run/csi/socket", "path of the unix socket to serve")
	flags.StringVar(&o.name, "name", memdriver.DefaultName, "plugin name")
	flags.StringVar(&o.dir, "dir", "", "folder of what the volumes hold, for pods to mount; needs root; default: they hold nothing")
	flags.StringVar(&o.registration, "registration", "", "kubelet's folder plugins_registry; default: no kubelet is told")
	flags.StringVar(&o.nodeID, "node-id", "node-1", "answer of NodeGetInfo")
	flags.StringSliceVar(&o.capabilities, "capabilities", nil, "controller capabilities by their CSI names; default all but PUBLISH_UNPUBLISH_VOLUME")
	flags.StringToStringVar(&o.topology, "topology", nil, "segment of this node, key=value,…; turns topology on")
	flags.StringArrayVar(&o.segments, "segment", nil, "a place where volumes may live, key=value,…; may be repeated; default anywhere")
	flags.StringVar(&o.capacity, "capacity", "1Pi", "room in each segment")
	flags.StringVar(&o.maxVolume, "max-volume", "0", "bound of one volume; 0 for none")
	flags.DurationVar(&o.delay, "delay", 0, "how long CreateVolume and DeleteVolume take")
	flags.DurationVar(&o.notReadyFor, "not-ready-for", 0, "how long Probe answers that the driver is not ready")
	flags.StringArrayVar(&o.fail, "fail", nil, "METHOD=CODE[:TIMES]: answer CODE to the first TIMES calls (default all); may be repeated")
	flags.StringVar(&o.record, "record", "", "file for the record of all calls, one JSON object a line")
	flags.BoolVar(&o.quiet, "quiet", false, "print no line per call")
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	var o options
	flags := pflag.NewFlagSet("memdriver", pflag.ContinueOnError)
	flags.SortFlags = false
	o.addFlags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	cfg, rules, err := o.complete()
	if err != nil {
		return err
	}
	record := io.Discard
	if o.record != "" {
		file, err := os.Create(o.record)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		record = file
	}
	cfg.Observe = o.observer(out, record)
	driver, err := memdriver.New(cfg)
	if err != nil {
		return err
	}
	driver.Add(rules...)
	if err := driver.Start(); err != nil {
		return err
	}
	defer driver.Stop()
	fmt.Fprintf(out, "%s serves %s\n", driver.Name(), driver.Socket())
	if o.notReadyFor > 0 {
		select {
		case <-time.After(o.notReadyFor):
			driver.Change(func(c *memdriver.Config) { c.NotReady = false })
		case <-ctx.Done():
		}
	}
	<-ctx.Done()
	return nil
}

// observer prints and records calls; memdriver calls it for one at a time.
func (o *options) observer(out, record io.Writer) func(memdriver.Call) {
	lines := json.NewEncoder(record)
	return func(call memdriver.Call) {
		if !o.quiet && call.Method != "Probe" {
			fmt.Fprintf(out, "%s  %s\n", call.Begin.Format("15:04:05.000"), call)
		}
		if err := lines.Encode(call); err != nil {
			fmt.Fprintln(os.Stderr, "memdriver: record:", err)
		}
	}
}

func (o *options) complete() (memdriver.Config, []memdriver.Rule, error) {
	cfg := memdriver.Config{
		Name: o.name, Socket: o.socket, NodeID: o.nodeID, Topology: o.topology, NotReady: o.notReadyFor > 0,
		Dir: o.dir, Registration: o.registration,
	}
	var errs []error
	for _, name := range o.capabilities {
		value, ok := csi.ControllerServiceCapability_RPC_Type_value[strings.ToUpper(name)]
		if !ok {
			errs = append(errs, fmt.Errorf("--capabilities: unknown %q", name))
			continue
		}
		cfg.Capabilities = append(cfg.Capabilities, memdriver.Capability(value))
	}
	for flag, quantity := range map[string]struct {
		text string
		to   *int64
	}{"capacity": {o.capacity, &cfg.CapacityBytes}, "max-volume": {o.maxVolume, &cfg.MaxVolumeBytes}} {
		parsed, err := resource.ParseQuantity(quantity.text)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
			continue
		}
		*quantity.to = parsed.Value()
	}
	for _, text := range o.segments {
		segment := map[string]string{}
		for pair := range strings.SplitSeq(text, ",") {
			key, value, ok := strings.Cut(pair, "=")
			if !ok {
				errs = append(errs, fmt.Errorf("--segment: %q is not key=value", pair))
			}
			segment[key] = value
		}
		cfg.Segments = append(cfg.Segments, segment)
	}
	rules, err := o.rules()
	return cfg, rules, errors.Join(append(errs, err)...)
}

func (o *options) rules() ([]memdriver.Rule, error) {
	var rules []memdriver.Rule
	var errs []error
	for _, text := range o.fail {
		rule, err := parseFail(text)
		errs = append(errs, err)
		rules = append(rules, rule)
	}
	if o.delay > 0 {
		rules = append(rules, memdriver.Slow("CreateVolume", o.delay), memdriver.Slow("DeleteVolume", o.delay))
	}
	return rules, errors.Join(errs...)
}

func parseFail(text string) (memdriver.Rule, error) {
	method, rest, ok := strings.Cut(text, "=")
	name, times, limited := strings.Cut(rest, ":")
	rule := memdriver.Rule{Method: method}
	for code := codes.Code(0); code <= codes.Unauthenticated; code++ {
		if strings.EqualFold(code.String(), name) {
			rule.Code = code
		}
	}
	if !ok || rule.Code == codes.OK {
		return rule, fmt.Errorf("--fail: %q is not METHOD=CODE[:TIMES]", text)
	}
	if limited {
		if _, err := fmt.Sscanf(times, "%d", &rule.Times); err != nil || rule.Times < 1 {
			return rule, fmt.Errorf("--fail: %q is not a number of calls", times)
		}
	}
	return rule, nil
}
