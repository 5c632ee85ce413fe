package nacos

import (
	"encoding/json"
	"fmt"
)

// Types of messages. The server sends those of the second group.
const (
	serverCheck     = "ServerCheckRequest"
	connectionSetup = "ConnectionSetupRequest"
	healthCheck     = "HealthCheckRequest"
	serviceList     = "ServiceListRequest"
	subscribe       = "SubscribeServiceRequest"
	serviceQuery    = "ServiceQueryRequest"

	notifySubscriber = "NotifySubscriberRequest"
	clientDetection  = "ClientDetectionRequest"
	connectReset     = "ConnectResetRequest"
	setupAck         = "SetupAckRequest"
)

// Codes of answers.
const (
	codeSuccess      = 200 // resultCode
	codeUnregistered = 301 // errorCode
	codeRefused      = 403 // errorCode
)

// answer begins the body of every answer.
type answer struct {
	ResultCode int    `json:"resultCode"`
	ErrorCode  int    `json:"errorCode"`
	Message    string `json:"message"`
}

func (a *answer) outcome() *answer { return a }

// result is an answer with all that its type has.
type result interface{ outcome() *answer }

// serverError is an answer that is an error.
type serverError struct {
	request string
	code    int
	message string
}

func (e *serverError) Error() string {
	return fmt.Sprintf("%s: the server answers with error %d: %s", e.request, e.code, e.message)
}

type checkAnswer struct {
	answer
	// The server tells what it can do, by a SetupAckRequest after the setup (Nacos 3).
	Negotiates bool `json:"supportAbilityNegotiation"`
}

type setupRequest struct {
	ClientVersion string            `json:"clientVersion"`
	Tenant        string            `json:"tenant"`
	Labels        map[string]string `json:"labels"`
	Abilities     map[string]bool   `json:"abilityTable"`
	Module        string            `json:"module"`
}

type listRequest struct {
	Namespace string `json:"namespace"`
	Group     string `json:"groupName"`
	Service   string `json:"serviceName"`
	Page      int    `json:"pageNo"`
	Size      int    `json:"pageSize"`
	Selector  string `json:"selector"`
	Module    string `json:"module"`
}

type listAnswer struct {
	answer
	Count int      `json:"count"`
	Names []string `json:"serviceNames"`
}

type subscribeRequest struct {
	Namespace string `json:"namespace"`
	Service   string `json:"serviceName"`
	Group     string `json:"groupName"`
	Clusters  string `json:"clusters"`
	Subscribe bool   `json:"subscribe"`
	Module    string `json:"module"`
}

type queryRequest struct {
	Namespace   string `json:"namespace"`
	Service     string `json:"serviceName"`
	Group       string `json:"groupName"`
	Cluster     string `json:"cluster"`
	HealthyOnly bool   `json:"healthyOnly"`
	UDPPort     int    `json:"udpPort"`
	Module      string `json:"module"`
}

// infoAnswer is the answer to a subscription and to a query.
type infoAnswer struct {
	answer
	Info *serviceInfo `json:"serviceInfo"`
}

// pushed is a NotifySubscriberRequest, or what the watcher uses of another request of the
// server.
type pushed struct {
	RequestID string       `json:"requestId"`
	Info      *serviceInfo `json:"serviceInfo"`
}

// reply answers a request of the server.
type reply struct {
	ResultCode int    `json:"resultCode"`
	RequestID  string `json:"requestId"`
	Success    bool   `json:"success"`
}

// serviceInfo is all of a service.
type serviceInfo struct {
	Name  string          `json:"name"`
	Group string          `json:"groupName"`
	Hosts json.RawMessage `json:"hosts"`
	// Protected: at most the service's protect threshold of its instances is healthy, so
	// the server sends all of them as healthy (NAC-15).
	Protected bool `json:"reachProtectionThreshold"`
}

// host is an instance. Pointers are nil if the field is missing.
type host struct {
	IP       string            `json:"ip"`
	Port     int64             `json:"port"`
	Weight   *float64          `json:"weight"`
	Healthy  *bool             `json:"healthy"`
	Enabled  *bool             `json:"enabled"`
	Cluster  string            `json:"clusterName"`
	Metadata map[string]string `json:"metadata"`
}
