package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestRunServesPrintsAndRecords(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "memdriver") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket, record := filepath.Join(dir, "s"), filepath.Join(dir, "record")
	ctx, stop := context.WithCancel(t.Context())
	var out lockedBuffer
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{
			"--socket", socket, "--record", record, "--topology=zone=a", "--capacity=1Gi", "--fail=CreateVolume=Internal:1",
		}, &out)
	}()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	r := &csi.CreateVolumeRequest{
		Name:               "pvc-1",
		CapacityRange:      &csi.CapacityRange{RequiredBytes: 1 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{{}},
		Secrets:            map[string]string{"key": "hush"},
	}
	client := csi.NewControllerClient(conn)
	if _, err := client.CreateVolume(t.Context(), r, grpc.WaitForReady(true)); status.Code(err) != codes.Internal {
		t.Errorf("first call: %v, want Internal", err)
	}
	if _, err := client.CreateVolume(t.Context(), r); err != nil {
		t.Errorf("second call: %v", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("run: %v", err)
	}
	for _, want := range []string{"mem.csi.example.com serves " + socket, "pvc-1  1Mi  secrets key  → Internal: told to fail", "→ vol-0001 1Mi in zone=a"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	var methods []string
	for line := range strings.Lines(string(text)) {
		var call struct{ Method, Key, Code string }
		if err := json.Unmarshal([]byte(line), &call); err != nil {
			t.Errorf("line %q: %v", line, err)
		}
		methods = append(methods, call.Method+" "+call.Key+" "+call.Code)
	}
	if got, want := strings.Join(methods, "; "), "CreateVolume pvc-1 Internal; CreateVolume pvc-1 OK"; got != want {
		t.Errorf("record %q, want %q", got, want)
	}
	if strings.Contains(string(text)+out.String(), "hush") {
		t.Error("a secret was printed")
	}
}

func TestMistakesAreNamedTogether(t *testing.T) {
	t.Parallel()
	err := run(t.Context(), []string{"--capabilities=FLY", "--capacity=much", "--fail=x", "--fail=X=Internal:no", "--segment=zone"}, &lockedBuffer{})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{`unknown "FLY"`, "--capacity", `"x" is not METHOD=CODE`, `"no" is not a number`, `"zone" is not key=value`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q: %v", want, err)
		}
	}
}
