package driver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// series returns the histograms in m as "name{labels} count", sorted.
func series(t *testing.T, m *Metrics) []string {
	t.Helper()
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, family := range families {
		if family.GetType() != dto.MetricType_HISTOGRAM {
			continue
		}
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, pair := range metric.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", pair.GetName(), pair.GetValue()))
			}
			list = append(list, fmt.Sprintf("%s{%s} %d", family.GetName(), strings.Join(labels, ","), metric.GetHistogram().GetSampleCount()))
		}
	}
	slices.Sort(list)
	return list
}

func TestCallMetrics(t *testing.T) {
	t.Parallel()
	const prefix = `csi_sidecar_operations_seconds{driver_name="d",grpc_status_code=`
	path := socketFile(t)
	fake := newFake("d")
	probes := 0
	m := NewMetrics()
	fake.probe = func(context.Context) (*csi.ProbeResponse, error) {
		if got := series(t, m); len(got) != 0 {
			t.Errorf("samples before the driver's name is known: %q", got)
		}
		probes++
		return &csi.ProbeResponse{Ready: wrapperspb.Bool(probes > 1)}, nil
	}
	fake.create = func(context.Context, *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		return nil, status.Error(codes.ResourceExhausted, "full")
	}
	fake.listen(t, path)
	d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute, Metrics: m})
	_, _ = d.CreateVolume(WithMigrated(quiet(t), true), &csi.CreateVolumeRequest{Name: "v"})
	want := []string{
		prefix + `"OK",method_name="/csi.v1.Controller/ControllerGetCapabilities"} 1`,
		prefix + `"OK",method_name="/csi.v1.Identity/GetPluginCapabilities"} 1`,
		prefix + `"OK",method_name="/csi.v1.Identity/GetPluginInfo"} 1`,
		prefix + `"OK",method_name="/csi.v1.Identity/Probe"} 2`,
		prefix + `"ResourceExhausted",method_name="/csi.v1.Controller/CreateVolume"} 1`,
	}
	if diff := cmp.Diff(want, series(t, m)); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}

	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	families = slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return f.GetType() != dto.MetricType_HISTOGRAM })
	if len(families) != 1 || !strings.HasPrefix(families[0].GetHelp(), "[ALPHA]") {
		t.Errorf("families %v, want one whose help begins with [ALPHA]", families)
	}
	var bounds []float64
	for _, b := range families[0].GetMetric()[0].GetHistogram().GetBucket() {
		bounds = append(bounds, b.GetUpperBound())
	}
	if diff := cmp.Diff([]float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}, bounds); diff != "" {
		t.Errorf("buckets (-want +got):\n%s", diff)
	}
}

// The samples from before the name is known are dropped: they have no place among those with one label more.
func TestCallMetricsOfAMigratedDriver(t *testing.T) {
	t.Parallel()
	const prefix = `csi_sidecar_operations_seconds{driver_name="pd.csi.storage.gke.io",grpc_status_code="OK",method_name="/csi.v1.`
	path := socketFile(t)
	newFake("pd.csi.storage.gke.io").listen(t, path)
	m := NewMetrics()
	d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute, Metrics: m, Migrated: func(string) bool { return true }})
	for _, ctx := range []context.Context{quiet(t), WithMigrated(quiet(t), false), WithMigrated(quiet(t), true)} {
		if _, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "v"}); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		prefix + `Controller/ControllerGetCapabilities",migrated="false"} 1`,
		prefix + `Controller/CreateVolume",migrated="false"} 2`,
		prefix + `Controller/CreateVolume",migrated="true"} 1`,
		prefix + `Identity/GetPluginCapabilities",migrated="false"} 1`,
		prefix + `Identity/Probe",migrated="false"} 1`,
	}
	if diff := cmp.Diff(want, series(t, m)); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// A driver that is not ready for days does not fill the memory.
func TestHeldSamplesAreBounded(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	for range maxHeld + 5 {
		m.observe(sample{"/csi.v1.Identity/Probe", nil, time.Second}, false)
	}
	m.setDriver("d", false)
	m.setDriver("another", true)
	want := []string{fmt.Sprintf(`csi_sidecar_operations_seconds{driver_name="d",grpc_status_code="OK",method_name="/csi.v1.Identity/Probe"} %d`, maxHeld)}
	if diff := cmp.Diff(want, series(t, m)); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// connectedSeries returns the gauge driver_connected as "driver value".
func connectedSeries(t *testing.T, m *Metrics) string {
	t.Helper()
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, family := range families {
		if family.GetName() != "driver_connected" {
			continue
		}
		for _, metric := range family.GetMetric() {
			list = append(list, fmt.Sprintf("%s %v", metric.GetLabel()[0].GetValue(), metric.GetGauge().GetValue()))
		}
	}
	return strings.Join(list, ", ")
}
