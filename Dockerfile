# The binary is static; it needs nothing but the certificates that HTTPS to the API server may want.
# `make image` gives VERSION and SOURCE_DATE_EPOCH, the time of the commit; two builds of a commit are alike.
ARG GO_IMAGE=golang:1.26
FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
ARG TARGETOS TARGETARCH TARGETVARIANT
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY pkg pkg
ARG VERSION=unknown
ARG SOURCE_DATE_EPOCH=0
RUN CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} GOARM=${TARGETVARIANT#v} \
    go build -tags=grpcnotrace -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" -o /out/csi-provisioner ./cmd/csi-provisioner \
 && mkdir -p /out/etc/ssl/certs && cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/ \
 && find /out -exec touch --date="@${SOURCE_DATE_EPOCH}" {} +

FROM scratch
ARG VERSION=unknown
LABEL description="CSI sidecar that creates and deletes volumes for PersistentVolumeClaims" revision="${VERSION}"
COPY --from=build /out/ /
# No USER: drivers often make their socket as root; the manifests show how to run as somebody else.
ENTRYPOINT ["/csi-provisioner"]
