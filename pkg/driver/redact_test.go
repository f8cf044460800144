package driver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Whatever the driver does with a secret, it appears neither in the log at verbosity 5 nor in an error.
func TestSecretsAreNeverShown(t *testing.T) {
	t.Parallel()
	const password, short = "hunter2-hunter2", "a1"
	path := socketFile(t)
	fake := newFake("d")
	var got map[string]string
	fake.create = func(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		got = req.GetSecrets()
		if req.GetName() == "quoted" {
			s, err := status.New(codes.InvalidArgument, "login root with "+password+" refused, code a1").WithDetails(wrapperspb.String(password))
			if err != nil {
				t.Error(err)
			}
			return nil, s.Err()
		}
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "id-1", VolumeContext: map[string]string{"login": password}}}, nil
	}
	fake.delete = func(context.Context, *csi.DeleteVolumeRequest) error {
		return status.Error(codes.Internal, "cannot log in with "+password)
	}
	fake.listen(t, path)
	ctx, log := withLogs(t)
	d := connect(t, ctx, Config{Address: path, Timeout: time.Minute})
	secrets := map[string]string{"password": password + "\n", "short": short}

	resp, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "plain", Secrets: secrets, Parameters: map[string]string{"tier": "gold"}})
	if err != nil {
		t.Fatal(err)
	}
	if got["password"] != password+"\n" || resp.GetVolume().GetVolumeContext()["login"] != password {
		t.Error("the call itself was changed by the redaction")
	}
	_, err = d.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "quoted", Secrets: secrets})
	if want := "login root with ***stripped*** refused, code a1"; status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != want {
		t.Errorf("error %v, want InvalidArgument with %q", err, want)
	}
	if len(status.Convert(err).Details()) != 0 {
		t.Error("the details with the secret were kept")
	}
	if err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: "id-1", Secrets: secrets}); err == nil || strings.Contains(err.Error(), password) {
		t.Errorf("DeleteVolume: %v", err)
	}

	text := log.text()
	if strings.Contains(text, "hunter2") {
		t.Errorf("a secret is in the log:\n%s", text)
	}
	for _, want := range []string{"GRPC call", "GRPC response", "/csi.v1.Controller/CreateVolume", "tier", "gold", "id-1", "***stripped***"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the log", want)
		}
	}
}

func TestErrorsWithoutSecretsStayAsTheyAre(t *testing.T) {
	t.Parallel()
	err := status.Error(codes.NotFound, "no such pool")
	for name, hidden := range map[string]secrets{"no secrets": nil, "another secret": secretsOf(withSecret("hunter2-hunter2"))} {
		if got := redactError(err, hidden); got != err { //nolint:errorlint // the very same
			t.Errorf("%s: %v", name, got)
		}
	}
	if redactError(nil, secretsOf(withSecret("hunter2-hunter2"))) != nil {
		t.Error("no error became one")
	}
}

// Details go with the status to whoever reads the error, and are not searched.
func TestDetailsAreDroppedWithSecrets(t *testing.T) {
	t.Parallel()
	s, err := status.New(codes.Internal, "no login").WithDetails(wrapperspb.String("hunter2-hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	got := status.Convert(redactError(s.Err(), secretsOf(withSecret("hunter2-hunter2"))))
	if len(got.Details()) != 0 || got.Code() != codes.Internal || got.Message() != "no login" {
		t.Errorf("status %v with details %v, want the same without details", got, got.Details())
	}
}

// Requirements that were encoded beforehand reach the driver and the log like any others.
func TestEncodedRequirementsAreReadable(t *testing.T) {
	t.Parallel()
	requirement := &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": "z-17"}}}}
	bytes, err := proto.Marshal(requirement)
	if err != nil {
		t.Fatal(err)
	}
	encoded := &csi.TopologyRequirement{}
	encoded.ProtoReflect().SetUnknown(bytes)

	path := socketFile(t)
	fake := newFake("d")
	received := make(chan *csi.TopologyRequirement, 1)
	fake.create = func(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		received <- req.GetAccessibilityRequirements()
		return &csi.CreateVolumeResponse{}, nil
	}
	fake.listen(t, path)
	ctx, log := withLogs(t)
	d := connect(t, ctx, Config{Address: path, Timeout: time.Minute})
	if _, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "v", AccessibilityRequirements: encoded}); err != nil {
		t.Fatal(err)
	}
	if got := <-received; !proto.Equal(requirement, got) {
		t.Errorf("the driver got %v, want %v", got, requirement)
	}
	if got := log.lines("z-17"); len(got) != 1 {
		t.Errorf("%d lines with the segment, want that of the request:\n%s", len(got), log.text())
	}
}

// Whoever watches the calls sees of an error what everybody sees.
func TestInterceptSeesNoSecrets(t *testing.T) {
	t.Parallel()
	const password = "hunter2-hunter2"
	path, fake := socketFile(t), newFake("d")
	fake.delete = func(context.Context, *csi.DeleteVolumeRequest) error {
		return status.Error(codes.Internal, "no login with "+password)
	}
	fake.listen(t, path)
	seen := map[string]error{}
	d := connect(t, t.Context(), Config{Address: path, Timeout: time.Minute, Intercept: func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoker(ctx, method, req, reply, cc, opts...)
		seen[method] = err
		return err
	}})
	err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "id-1", Secrets: map[string]string{"password": password}})
	if got := seen["/csi.v1.Controller/DeleteVolume"]; err == nil || !errors.Is(got, err) || strings.Contains(got.Error(), password) {
		t.Errorf("the interceptor saw %v, the caller %v, want the same without the secret", got, err)
	}
}
