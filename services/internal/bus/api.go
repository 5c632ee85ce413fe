package bus

// accountAPI is the request that JetStream's leader answers.
const accountAPI = "$JS.API.INFO"

// The requests that are made of a server, each with the name of a stream, and
// in some cases more, behind it.
const (
	infoAPI         = "$JS.API.STREAM.INFO."
	createStreamAPI = "$JS.API.STREAM.CREATE."
	updateStreamAPI = "$JS.API.STREAM.UPDATE."
	directGetAPI    = "$JS.API.DIRECT.GET."
)
