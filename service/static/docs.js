// The API by Swagger UI, whose files come with the package; requests carry the key of the inspector page.

import { get, key } from "./api.js";

const spec = await get("/openapi.json");
window.SwaggerUIBundle({
  spec,
  dom_id: "#api",
  deepLinking: true,
  validatorUrl: null,
  requestInterceptor: (request) => {
    if (key()) request.headers.Authorization ??= `Bearer ${key()}`;
    return request;
  },
});
